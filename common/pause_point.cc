#include "common/pause_point.h"

#include <map>
#include <string>

#include "common/mutex.h"

namespace oasiskv {
namespace {

enum class PointState { kArmed, kReached, kReleased };

struct Registry {
  Mutex mutex;
  CondVar changed;
  std::map<std::string, PointState> points ABSL_GUARDED_BY(mutex);
  int waiting ABSL_GUARDED_BY(mutex) = 0;
};

Registry& TheRegistry() {
  static Registry& registry = *new Registry;  // outlives every thread that may still reach a point
  return registry;
}

}  // namespace

std::atomic<bool> PausePoints::any_armed_{false};

void PausePoints::Arm(absl::string_view name) {
  Registry& r = TheRegistry();
  MutexLock lock(r.mutex);
  r.points[std::string(name)] = PointState::kArmed;
  any_armed_.store(true);
}

bool PausePoints::WaitReached(absl::string_view name, std::chrono::nanoseconds timeout) {
  Registry& r = TheRegistry();
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  MutexLock lock(r.mutex);
  while (true) {
    auto it = r.points.find(std::string(name));
    if (it != r.points.end() && it->second == PointState::kReached) return true;
    if (!r.changed.WaitUntil(r.mutex, deadline) && std::chrono::steady_clock::now() >= deadline) {
      return false;
    }
  }
}

void PausePoints::Release(absl::string_view name) {
  Registry& r = TheRegistry();
  MutexLock lock(r.mutex);
  auto it = r.points.find(std::string(name));
  if (it == r.points.end()) return;
  if (it->second == PointState::kReached) {
    it->second = PointState::kReleased;
    r.changed.NotifyAll();
  } else {
    r.points.erase(it);
  }
  if (r.points.empty()) any_armed_.store(false);
}

int PausePoints::Waiting() {
  Registry& r = TheRegistry();
  MutexLock lock(r.mutex);
  return r.waiting;
}

void PausePoints::Reach(absl::string_view name) {
  Registry& r = TheRegistry();
  MutexLock lock(r.mutex);
  auto it = r.points.find(std::string(name));
  if (it == r.points.end() || it->second != PointState::kArmed) return;
  it->second = PointState::kReached;
  ++r.waiting;
  r.changed.NotifyAll();
  while (r.points[std::string(name)] == PointState::kReached) r.changed.Wait(r.mutex);
  --r.waiting;
  // Armed again in the meantime: that arming is another thread's.
  if (r.points[std::string(name)] == PointState::kReleased) r.points.erase(std::string(name));
  if (r.points.empty()) any_armed_.store(false);
}

}  // namespace oasiskv
