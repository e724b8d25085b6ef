// A part of a GPU's multiprocessors for some streams only (CUDA driver API, green contexts).
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/cuda/handles.h"

struct CUdevResource_st;  // of cuda.h

namespace oasiskv::cuda {

// Thread contract: a move-only owner; StreamOf may be called from any thread. Streams made of it
// are destroyed before it.
//
// Kernels of its streams run on its multiprocessors only. Kernels of other streams may run on any,
// also on these. Launches that were captured keep their part in a graph.
class Processors {
 public:
  // Parts of at least so many multiprocessors of `device`, rounded up to sizes that it can split
  // off (multiples of 8 on compute capability 9.0), and after them one part of all others. Errors:
  // INVALID_ARGUMENT, naming the counts, if there would be no others; UNSUPPORTED if the driver is
  // older than CUDA 12.5 or cannot divide this device.
  static absl::StatusOr<std::vector<Processors>> Divide(int device,
                                                        std::span<const uint32_t> parts);
  Processors() = default;
  Processors(Processors&& other) noexcept
      : context_(std::exchange(other.context_, nullptr)), count_(other.count_) {}
  Processors& operator=(Processors&& other) noexcept {
    std::swap(context_, other.context_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~Processors();

  absl::StatusOr<Stream> StreamOf(int priority) const;
  uint32_t count() const { return count_; }

 private:
  static absl::StatusOr<Processors> Create(int device, std::span<CUdevResource_st> resources);

  void* context_ = nullptr;  // a CUgreenCtx
  uint32_t count_ = 0;
};

}  // namespace oasiskv::cuda
