// Owners of CUDA objects.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"

namespace oasiskv::cuda {

// Thread contract: not safe for concurrent use.
//
// Makes `device` current for a scope, and then the caller's device again.
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = -1;
};

// Thread contract: a move-only owner of zeroed memory on the device that is current when it is
// made.
class DeviceBuffer {
 public:
  // Error: CAPACITY, naming the sizes and `what` it is for.
  static absl::StatusOr<DeviceBuffer> Create(uint64_t bytes, absl::string_view what);
  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  ~DeviceBuffer();
  std::byte* data() const { return data_; }
  template <typename T>
  T* As() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
};

// Thread contract: a move-only owner of zeroed pinned host memory, which every device of the
// process sees at the host's address.
class PinnedBuffer {
 public:
  static absl::StatusOr<PinnedBuffer> Create(uint64_t bytes, absl::string_view what);
  PinnedBuffer() = default;
  PinnedBuffer(PinnedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~PinnedBuffer();
  std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }
  template <typename T>
  T* As() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
};

// Thread contract: a move-only owner. Streams are non-blocking: they never wait for the legacy
// default stream.
class Stream {
 public:
  static absl::StatusOr<Stream> Create(int priority);
  // Takes ownership of a stream that was made elsewhere.
  static Stream Adopt(cudaStream_t stream);
  Stream() = default;
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~Stream();
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// Thread contract: a move-only owner of an event. One that keeps time costs the GPU more.
class Event {
 public:
  enum class Timing { kOff, kOn };
  static absl::StatusOr<Event> Create(Timing timing = Timing::kOff);
  Event() = default;
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~Event();
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace oasiskv::cuda
