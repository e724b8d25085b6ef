// Device memory with what a benchmark puts there.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/cuda/handles.h"
#include "common/cuda/status.h"
#include "common/status_macros.h"

namespace oasiskv::bench {

// Thread contract: one thread.
template <typename T>
class DeviceArray {
 public:
  static absl::StatusOr<DeviceArray> Of(const std::vector<T>& values) {
    OASISKV_ASSIGN_OR_RETURN(DeviceArray array, Zeroed(values.size()));
    OASISKV_CUDA_RETURN(
        cudaMemcpy(array.data(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    return array;
  }
  static absl::StatusOr<DeviceArray> Zeroed(size_t size) {
    DeviceArray array;
    OASISKV_ASSIGN_OR_RETURN(
        array.buffer_,
        cuda::DeviceBuffer::Create(std::max<size_t>(size, 1) * sizeof(T), "the benchmark"));
    return array;
  }
  DeviceArray() = default;
  T* data() const { return buffer_.template As<T>(); }

 private:
  cuda::DeviceBuffer buffer_;
};

}  // namespace oasiskv::bench
