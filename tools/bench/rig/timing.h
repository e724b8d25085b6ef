// Device time: points in it, captured graphs, and repeated work.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cuda/handles.h"

namespace oasiskv::bench {

// The point in `stream` at which all that was enqueued before is done.
absl::StatusOr<cuda::Event> Mark(cudaStream_t stream);
// Seconds between two marks that are both passed.
absl::StatusOr<double> SecondsBetween(const cuda::Event& begin, const cuda::Event& end);

// Seconds of each of `repeats` calls of `enqueue`, after `warmups` calls that do not count: of what
// it puts on `stream`, from the first kernel to the last. It is told the number of the call, warm-ups
// included. `prepare`, where given, comes before each call and outside its time.
absl::StatusOr<std::vector<double>> TimeRepeats(
    cudaStream_t stream, uint32_t warmups, uint32_t repeats,
    const std::function<absl::Status(uint32_t)>& enqueue,
    const std::function<absl::Status()>& prepare = nullptr);

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

}  // namespace oasiskv::bench
