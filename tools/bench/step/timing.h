// Device time: events, the stages of an eager step, and captured graphs.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace oasiskv::bench::step {

// Thread contract: a move-only owner of an event that keeps time.
class TimedEvent {
 public:
  static absl::StatusOr<TimedEvent> Create();
  TimedEvent() = default;
  TimedEvent(TimedEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  TimedEvent& operator=(TimedEvent&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~TimedEvent();
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

absl::StatusOr<double> SecondsBetween(const TimedEvent& begin, const TimedEvent& end);

enum class Stage { kGemm, kAttention, kOther, kExposedWait, kScore, kSelect, kGather };
inline constexpr size_t kStages = 7;
const char* StageName(Stage stage);

// Thread contract: one thread.
//
// Sums the device time of an eager step by stage. A section is what was enqueued on `stream`
// between Begin and End.
class StageClock {
 public:
  absl::Status Begin(Stage stage, cudaStream_t stream);
  absl::Status End(cudaStream_t stream);
  // Waits for the sections and adds their times to the sums.
  absl::Status Collect();
  double seconds(Stage stage) const { return seconds_[static_cast<size_t>(stage)]; }

 private:
  struct Section {
    Stage stage;
    TimedEvent begin, end;
  };
  std::vector<Section> open_;
  std::vector<Section> spare_;
  std::array<double, kStages> seconds_{};
};

// Begin/End around a call when there is a clock.
template <typename Call>
absl::Status Timed(StageClock* clock, Stage stage, cudaStream_t stream, Call call) {
  if (clock != nullptr) {
    if (absl::Status s = clock->Begin(stage, stream); !s.ok()) return s;
  }
  if (absl::Status s = call(); !s.ok()) return s;
  return clock != nullptr ? clock->End(stream) : absl::OkStatus();
}

// Thread contract: a move-only owner of an executable graph.
class Graph {
 public:
  // What `enqueue` puts on `stream`, and on streams that it forks off and joins again.
  static absl::StatusOr<Graph> Capture(cudaStream_t stream,
                                       const std::function<absl::Status()>& enqueue);
  Graph() = default;
  Graph(Graph&& other) noexcept { *this = std::move(other); }
  Graph& operator=(Graph&& other) noexcept {
    std::swap(exec_, other.exec_);
    std::swap(nodes_, other.nodes_);
    return *this;
  }
  ~Graph();
  absl::Status Launch(cudaStream_t stream) const;
  size_t nodes() const { return nodes_; }

 private:
  cudaGraphExec_t exec_ = nullptr;
  size_t nodes_ = 0;
};

// An error text of a launch as a status.
absl::Status Launched(const char* error, const char* what);

}  // namespace oasiskv::bench::step
