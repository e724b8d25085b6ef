#include "common/fabric/verbs/client/engine.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/fabric/verbs/device_memory.h"
#include "common/fabric/verbs/memory.h"
#include "common/pause_point.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric::verbs {
namespace {

// How long the thread looks for completions before it sleeps.
constexpr Duration kSpin = std::chrono::microseconds(50);

MonotonicTime Now() { return std::chrono::steady_clock::now(); }

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const VerbsConnectOptions& options) {
  OASISKV_ASSIGN_OR_RETURN(Link link, Link::Open(options));
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) {
    return MakeError(ErrorCode::kInternal, absl::StrCat("eventfd: ", std::strerror(errno)));
  }
  OASISKV_ASSIGN_OR_RETURN(BouncePool bounce, BouncePool::Create(link.port(), link.domain()));
  OASISKV_ASSIGN_OR_RETURN(std::vector<Pair> pairs, link.MakePairs());
  return std::unique_ptr<Engine>(
      new Engine(std::move(link), std::move(wake), std::move(pairs), std::move(bounce)));
}

Engine::Engine(Link link, UniqueFd wake, std::vector<Pair> pairs, BouncePool bounce)
    : link_(std::move(link)),
      wake_(std::move(wake)),
      traffic_(std::move(pairs), link_.places(), std::move(bounce)),
      alarm_(wake_.get()),
      poster_(link_, traffic_, regions_),
      completer_(link_, traffic_, poster_, gate_, alarm_),
      sweeper_(link_, traffic_, poster_, completer_, alarm_) {}

ClientHello Engine::Hello() {
  MutexLock lock(mutex_);
  return link_.Hello(traffic_.pairs);
}

absl::Status Engine::Start(const ServerHello& hello) {
  MutexLock lock(mutex_);
  OASISKV_RETURN_IF_ERROR(link_.Connect(hello, traffic_.pairs));
  traffic_.last_heard = Now();
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

void Engine::Stop() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
    completer_.Lose(MakeError(ErrorCode::kCancelled, "the connection was closed"));
    alarm_.Wake();
  }
  if (thread_.joinable()) thread_.join();
  MutexLock lock(mutex_);
  traffic_.pairs.clear();
}

std::string Engine::Describe() {
  MutexLock lock(mutex_);
  return absl::StrCat("verbs on ", link_.port().device, " port ",
                      static_cast<int>(link_.port().number), ", GID ", GidText(link_.gid().gid),
                      " to ", GidText(link_.server().port.gid), ", ", link_.options().queue_pairs,
                      " queue pairs, ", link_.server().max_rd_atomic, " reads on the wire each");
}

absl::Status Engine::Health() {
  MutexLock lock(mutex_);
  return traffic_.lost;
}

ConnectionStats Engine::Stats() {
  MutexLock lock(mutex_);
  return traffic_.stats;
}

absl::StatusOr<std::shared_ptr<Region>> Engine::AddRegion(std::span<std::byte> memory) {
  OASISKV_ASSIGN_OR_RETURN(
      MemoryRegion key,
      RegisterMemory(link_.port(), link_.domain(), memory,
                     {"a buffer of the caller", IBV_ACCESS_LOCAL_WRITE, true, memory.size()}));
  return Add(memory, std::move(key));
}

absl::StatusOr<std::shared_ptr<Region>> Engine::AddDeviceRegion(const DeviceBuffer& memory) {
  OASISKV_ASSIGN_OR_RETURN(MemoryRegion key,
                           RegisterDeviceMemory(link_.port(), link_.domain(), memory));
  return Add({reinterpret_cast<std::byte*>(memory.address), memory.bytes}, std::move(key));
}

std::shared_ptr<Region> Engine::Add(std::span<std::byte> memory, MemoryRegion key) {
  auto region = std::make_shared<Region>();
  region->begin = memory.data();
  region->bytes = memory.size();
  region->key = std::move(key);
  MutexLock lock(mutex_);
  regions_.Add(region);
  return region;
}

void Engine::RemoveRegion(const Region* region) {
  MutexLock lock(mutex_);
  regions_.Remove(region);
}

void Engine::Pump() {
  const absl::Status status = poster_.Pump();
  if (!status.ok()) completer_.Lose(status);
}

void Engine::CountStart(const Batch& batch, size_t pieces) {
  ++(batch.access == Access::kRead ? traffic_.stats.reads : traffic_.stats.writes);
  traffic_.stats.pieces += pieces;
}

bool Engine::Open(const std::shared_ptr<Batch>& batch, size_t pieces,
                  std::vector<Stretch>& parcel) {
  MutexLock lock(mutex_);
  CountStart(*batch, pieces);
  if (!completer_.Begin(batch)) return false;
  batch->prepared = batch->posted = Now();
  batch->times.prepare = batch->prepared - batch->started;
  poster_.TakeSpare(parcel);
  return true;
}

bool Engine::AddParcel(const std::shared_ptr<Batch>& batch, std::vector<Stretch>& parcel,
                       bool last) {
  MutexLock lock(mutex_);
  while (batch->parcels.size() >= kMaxParcels && !batch->Over()) batch->changed.Wait(mutex_);
  if (batch->Over()) return false;
  if (!parcel.empty()) {
    batch->parcels.push_back(std::move(parcel));
    poster_.Enqueue(batch);
    parcel.clear();
  }
  batch->filled = last;
  Pump();
  completer_.CheckIfComplete(batch);
  if (!traffic_.to_check.empty()) alarm_.Wake();
  if (!last) poster_.TakeSpare(parcel);
  return true;
}

void Engine::Refuse(const std::shared_ptr<Batch>& batch, size_t pieces, const absl::Status& why) {
  MutexLock lock(mutex_);
  CountStart(*batch, pieces);
  completer_.Finish(*batch, why);
}

absl::Status Engine::Wait(const std::shared_ptr<Batch>& batch) {
  MutexLock lock(mutex_);
  while (!batch->outcome.has_value()) batch->changed.Wait(mutex_);
  return *batch->outcome;
}

void Engine::Cancel(const std::shared_ptr<Batch>& batch) {
  MutexLock lock(mutex_);
  completer_.EndEarly(batch, MakeError(ErrorCode::kCancelled, "the batch was cancelled"), Now());
  alarm_.Wake();
  while (!batch->outcome.has_value()) batch->changed.Wait(mutex_);
}

TransferTimes Engine::Times(const Batch& batch) {
  MutexLock lock(mutex_);
  return batch.times;
}

bool Engine::CloseGate(GrantId grant) {
  const bool first = gate_.Close(grant);
  MutexLock lock(mutex_);
  return first && traffic_.lost.ok() && !completer_.writes_lost();
}

// What is due is looked at with each completion and before each sleep, which comes soon when there
// are none: looking for completions in vain takes no lock.
void Engine::Run() {
  std::array<ibv_wc, 64> done;
  MonotonicTime active = Now();
  bool armed = false;  // the device will tell of a completion that comes from now on
  bool slept = false;
  while (true) {
    const int count =
        ::ibv_poll_cq(link_.completions(), static_cast<int>(done.size()), done.data());
    if (count == 0 && armed) {
      Block();
      armed = false;
      slept = true;
      continue;
    }
    const MonotonicTime now = Now();
    bool check = false;
    if (count != 0 || slept) {
      MutexLock lock(mutex_);
      alarm_.Awake();
      slept = false;
      if (count < 0) {
        completer_.Lose(MakeError(
            ErrorCode::kInternal,
            absl::StrCat("the RDMA device '", link_.port().device, "' cannot be polled")));
      }
      for (int i = 0; i < count; ++i) completer_.OnCompletion(done[i], now);
      Pump();
      if (now >= sweeper_.Next()) sweeper_.Sweep(now);
      check = !traffic_.to_check.empty();
      if (stop_ && traffic_.outstanding == 0) return;
    }
    if (check) {
      OASISKV_PAUSE_POINT("verbs.before_grant_word");
      MutexLock lock(mutex_);
      const absl::Status status = poster_.PostWordReads();
      if (!status.ok()) completer_.Lose(status);
    }
    if (count > 0) {
      active = now;
      armed = false;
    } else if (now - active > kSpin) {
      ::ibv_req_notify_cq(link_.completions(), 0);
      armed = true;
    }
  }
}

void Engine::Block() {
  int timeout = 0;
  {
    MutexLock lock(mutex_);
    const MonotonicTime now = Now();
    if (now >= sweeper_.Next()) sweeper_.Sweep(now);
    if ((stop_ && traffic_.outstanding == 0) || !traffic_.to_check.empty()) return;
    const MonotonicTime until = sweeper_.Next();
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - now);
    timeout = static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60'000));
    alarm_.SleepsUntil(until);
  }
  std::array<pollfd, 2> wait = {pollfd{link_.channel()->fd, POLLIN, 0},
                                pollfd{wake_.get(), POLLIN, 0}};
  ::poll(wait.data(), wait.size(), timeout);
  if (wait[0].revents != 0) {
    ibv_cq* queue = nullptr;
    void* context = nullptr;
    unsigned events = 0;
    while (::ibv_get_cq_event(link_.channel(), &queue, &context) == 0) ++events;
    if (events > 0) ::ibv_ack_cq_events(link_.completions(), events);
  }
  if (wait[1].revents != 0) {
    eventfd_t ignored;
    ::eventfd_read(wake_.get(), &ignored);
  }
}

}  // namespace oasiskv::fabric::verbs
