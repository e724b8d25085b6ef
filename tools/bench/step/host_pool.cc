#include "tools/bench/step/host_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/working_set/cuda/host/launch.h"
#include "common/cuda/handles.h"
#include "common/cuda/host_registration.h"
#include "common/cuda/status.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"
#include "tools/bench/step/kernels/small_kernels.h"

namespace oasiskv::bench::step {
namespace {

constexpr uint64_t kChunk = uint64_t{1} << 30;  // filled at a time

// Unregisters what it registered, so that the pool can be registered for reading only afterwards.
class WritableRegistration {
 public:
  absl::Status Register(std::byte* begin, uint64_t bytes) {
    OASISKV_CUDA_RETURN(cudaHostRegister(begin, bytes, cudaHostRegisterDefault));
    begin_ = begin;
    return absl::OkStatus();
  }
  ~WritableRegistration() {
    if (begin_ != nullptr) cudaHostUnregister(begin_);
  }

 private:
  std::byte* begin_ = nullptr;
};

// The bytes are copied before the call returns.
class CopiedFetch : public PendingFetch {
 public:
  explicit CopiedFetch(absl::Status status) : status_(std::move(status)) {}
  bool Done() override { return true; }
  absl::Status Wait() override { return status_; }
  void Cancel() override {}

 private:
  const absl::Status status_;
};

// Thread contract: safe for concurrent use (immutable).
class PoolSource : public EntrySource {
 public:
  PoolSource(std::shared_ptr<const HostPool> pool, uint32_t sequence, uint64_t tokens)
      : pool_(std::move(pool)), sequence_(sequence % pool_->sequences()), tokens_(tokens) {}

  const Geometry& geometry() const override { return pool_->geometry(); }
  uint64_t token_count() const override { return tokens_; }

  std::unique_ptr<PendingFetch> Fetch(std::span<const EntryRead> entries, TimePoint) override {
    for (const EntryRead& e : entries) {
      if (e.block.value() >= blocks()) {
        return std::make_unique<CopiedFetch>(MakeError(
            ErrorCode::kOutOfRange, absl::StrCat("block ", e.block.value(), " of ", blocks())));
      }
      std::memcpy(
          e.into,
          pool_->Frame(sequence_, e.block.value()) + geometry().entry_offset(e.layer, e.head),
          geometry().entry_bytes());
    }
    return std::make_unique<CopiedFetch>(absl::OkStatus());
  }

  absl::Status FetchSummaries(std::byte* into, TimePoint) override {
    const uint64_t bytes = uint64_t{geometry().layers} * geometry().layer_summaries_bytes();
    for (uint32_t b = 0; b < blocks(); ++b) {
      std::memcpy(into + b * bytes, pool_->Frame(sequence_, b) + geometry().summaries_offset(),
                  bytes);
    }
    return absl::OkStatus();
  }

  std::vector<int32_t> FirstTopK(uint32_t* k) const override {
    *k = 0;
    return {};
  }

  // Decoded blocks stay with the working set, which keeps them itself for a source in place.
  absl::Status WriteBack(BlockIndex, LayerIndex, std::span<const std::byte>,
                         std::span<const std::byte>) override {
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<LocalPart>> LocalEntries() const override {
    LocalPart part;
    part.head_count = geometry().kv_heads;
    part.layer_stride = geometry().layer_entries_bytes();
    for (uint32_t b = 0; b < blocks(); ++b)
      part.memory.frames.push_back(pool_->Frame(sequence_, b));
    part.memory.mappings.push_back(pool_->memory());
    part.memory.keep = pool_;
    return std::vector<LocalPart>{std::move(part)};
  }

  absl::Status Health() const override { return absl::OkStatus(); }
  SourceStats Stats() const override { return {}; }

 private:
  uint32_t blocks() const { return geometry().BlocksFor(tokens_); }

  const std::shared_ptr<const HostPool> pool_;
  const uint32_t sequence_;
  const uint64_t tokens_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const HostPool>> HostPool::Create(const Geometry& geometry,
                                                                 uint32_t blocks, uint32_t wanted,
                                                                 uint64_t limit_bytes,
                                                                 uint64_t seed,
                                                                 cudaStream_t stream) {
  OASISKV_RETURN_IF_ERROR(geometry.Validate());
  std::shared_ptr<HostPool> pool(new HostPool(geometry, blocks));
  const uint64_t one = uint64_t{blocks} * geometry.frame_stride();
  pool->sequences_ = static_cast<uint32_t>(std::min<uint64_t>(wanted, limit_bytes / one));
  if (pool->sequences_ == 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrCat("--host_bytes: ", limit_bytes, " hold no sequence of ", one,
                                  " bytes (", blocks, " blocks of this model)"));
  }
  pool->bytes_ = pool->sequences_ * one;
  OASISKV_RETURN_IF_ERROR(pool->Map());
  OASISKV_RETURN_IF_ERROR(pool->Fill(seed, stream));
  // The registration must not keep the pool alive: the pool holds the registration.
  OASISKV_ASSIGN_OR_RETURN(pool->registration_,
                           cuda::HostRegistration::Get(pool->memory(), nullptr));
  return pool;
}

HostPool::~HostPool() {
  registration_.reset();
  if (memory_ != nullptr) munmap(memory_, bytes_);
}

absl::Status HostPool::Map() {
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return MakeError(
        ErrorCode::kCapacity,
        absl::StrCat("mapping ", bytes_, " bytes of host memory: ", std::strerror(errno)));
  }
  memory_ = static_cast<std::byte*>(memory);
  madvise(memory, bytes_, MADV_HUGEPAGE);  // fewer page faults; small pages do as well
  // Touched by many threads: the kernel zeroes a page at its first touch.
  const uint32_t threads = std::clamp(std::thread::hardware_concurrency(), 1u, 16u);
  std::vector<std::thread> running;
  for (uint32_t t = 0; t < threads; ++t) {
    running.emplace_back([this, t, threads] {
      const uint64_t share = (bytes_ / threads + 4095) & ~uint64_t{4095};
      const uint64_t end = std::min(bytes_, (t + 1) * share);
      for (uint64_t at = t * share; at < end; at += 4096) memory_[at] = std::byte{1};
    });
  }
  for (std::thread& t : running) t.join();
  return absl::OkStatus();
}

absl::Status HostPool::Fill(uint64_t seed, cudaStream_t stream) {
  const uint64_t stride = geometry_.frame_stride();
  const uint64_t all = uint64_t{sequences_} * blocks_;
  const uint64_t at_once = std::clamp<uint64_t>((uint64_t{256} << 20) / stride, 1, all);
  OASISKV_ASSIGN_OR_RETURN(cuda::DeviceBuffer staging,
                           cuda::DeviceBuffer::Create(at_once * stride, "making host KV"));
  const FrameShape shape{.frame_bytes = stride,
                         .entries = geometry_.layers * geometry_.kv_heads,
                         .entry_bytes = geometry_.entry_bytes(),
                         .head_dim = geometry_.head_dim};
  const uint64_t frames_of_chunk = std::max<uint64_t>(1, kChunk / stride);
  for (uint64_t chunk = 0; chunk < all; chunk += frames_of_chunk) {
    const uint64_t end = std::min(all, chunk + frames_of_chunk);
    WritableRegistration registration;
    OASISKV_RETURN_IF_ERROR(
        registration.Register(memory_ + chunk * stride, (end - chunk) * stride));
    for (uint64_t first = chunk; first < end; first += at_once) {
      const uint64_t count = std::min(at_once, end - first);
      OASISKV_RETURN_IF_ERROR(Launched(
          "making host KV",
          FillNormal(staging.data(), count * stride / 2, 1.0f, seed * 1000003 + first, stream)));
      OASISKV_RETURN_IF_ERROR(
          Launched("summaries of host KV",
                   SummariseFrames(shape, staging.data(), static_cast<uint32_t>(count), stream)));
      OASISKV_CUDA_RETURN(cudaMemcpyAsync(memory_ + first * stride, staging.data(), count * stride,
                                          cudaMemcpyDeviceToHost, stream));
    }
    OASISKV_CUDA_RETURN(cudaStreamSynchronize(stream));
  }
  return absl::OkStatus();
}

std::shared_ptr<EntrySource> MakePoolSource(std::shared_ptr<const HostPool> pool, uint32_t sequence,
                                            uint64_t tokens) {
  return std::make_shared<PoolSource>(std::move(pool), sequence, tokens);
}

}  // namespace oasiskv::bench::step
