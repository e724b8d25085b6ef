// The GPU that a bench or a test runs on: memory with contents, and how large it is.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/cuda/handles.h"
#include "common/cuda/status.h"
#include "common/status_macros.h"

namespace oasiskv::bench {

// Into device memory; returns when the values are there.
template <typename T>
absl::Status Upload(const std::vector<T>& values, T* to) {
  OASISKV_CUDA_RETURN(
      cudaMemcpy(to, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  // A copy out of pageable memory goes by the legacy stream, for which other streams do not wait.
  OASISKV_CUDA_RETURN(cudaStreamSynchronize(cudaStreamLegacy));
  return absl::OkStatus();
}

// What all work before on the device left there.
template <typename T>
absl::StatusOr<std::vector<T>> Download(const T* from, size_t size) {
  std::vector<T> values(size);
  OASISKV_CUDA_RETURN(cudaMemcpy(values.data(), from, size * sizeof(T), cudaMemcpyDeviceToHost));
  return values;
}

// Thread contract: one thread.
template <typename T>
class DeviceArray {
 public:
  static absl::StatusOr<DeviceArray> Of(const std::vector<T>& values) {
    OASISKV_ASSIGN_OR_RETURN(DeviceArray array, Zeroed(values.size()));
    OASISKV_RETURN_IF_ERROR(Upload(values, array.data()));
    return array;
  }
  static absl::StatusOr<DeviceArray> Zeroed(size_t size) {
    DeviceArray array;
    OASISKV_ASSIGN_OR_RETURN(
        array.buffer_,
        cuda::DeviceBuffer::Create(std::max<size_t>(size, 1) * sizeof(T), "a bench or a test"));
    return array;
  }
  DeviceArray() = default;
  T* data() const { return buffer_.template As<T>(); }

 private:
  cuda::DeviceBuffer buffer_;
};

// Multiprocessors of the current device.
inline absl::StatusOr<uint32_t> Multiprocessors() {
  int device = 0, count = 0;
  OASISKV_CUDA_RETURN(cudaGetDevice(&device));
  OASISKV_CUDA_RETURN(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return static_cast<uint32_t>(count);
}

}  // namespace oasiskv::bench
