#include "common/cuda/handles.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "common/cuda/status.h"
#include "oasiskv/error.h"

namespace oasiskv::cuda {

DeviceScope::DeviceScope(int device) {
  int now = -1;
  if (cudaGetDevice(&now) != cudaSuccess || now == device) return;
  if (cudaSetDevice(device) == cudaSuccess) before_ = now;
}

DeviceScope::~DeviceScope() {
  if (before_ >= 0) cudaSetDevice(before_);
}

absl::StatusOr<DeviceBuffer> DeviceBuffer::Create(uint64_t bytes, absl::string_view what) {
  DeviceBuffer buffer;
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, bytes == 0 ? 1 : bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    return MakeError(ErrorCode::kCapacity,
                     absl::StrFormat("%s needs %d bytes of device memory; %d of %d are free", what,
                                     bytes, free, total));
  }
  if (error != cudaSuccess) return ToStatus(error, "cudaMalloc");
  buffer.data_ = static_cast<std::byte*>(data);
  OASISKV_CUDA_RETURN(cudaMemset(data, 0, bytes));
  // Non-blocking streams do not wait for the stream that zeroes.
  OASISKV_CUDA_RETURN(cudaStreamSynchronize(cudaStreamLegacy));
  return buffer;
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) cudaFree(data_);
}

absl::StatusOr<PinnedBuffer> PinnedBuffer::Create(uint64_t bytes, absl::string_view what) {
  PinnedBuffer buffer;
  void* data = nullptr;
  const cudaError_t error =
      cudaHostAlloc(&data, bytes == 0 ? 1 : bytes, cudaHostAllocPortable | cudaHostAllocMapped);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return MakeError(
        ErrorCode::kCapacity,
        absl::StrFormat("%s needs %d bytes of pinned host memory, which this machine does not have",
                        what, bytes));
  }
  if (error != cudaSuccess) return ToStatus(error, "cudaHostAlloc");
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.size_ = bytes;
  std::fill_n(buffer.data_, bytes, std::byte{0});
  return buffer;
}

PinnedBuffer::~PinnedBuffer() {
  if (data_ != nullptr) cudaFreeHost(data_);
}

absl::StatusOr<Stream> Stream::Create(int priority) {
  Stream stream;
  OASISKV_CUDA_RETURN(
      cudaStreamCreateWithPriority(&stream.stream_, cudaStreamNonBlocking, priority));
  return stream;
}

Stream Stream::Adopt(cudaStream_t stream) {
  Stream owner;
  owner.stream_ = stream;
  return owner;
}

Stream::~Stream() {
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

absl::StatusOr<Event> Event::Create(Timing timing) {
  Event event;
  OASISKV_CUDA_RETURN(cudaEventCreateWithFlags(
      &event.event_, timing == Timing::kOn ? cudaEventDefault : cudaEventDisableTiming));
  return event;
}

Event::~Event() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}

}  // namespace oasiskv::cuda
