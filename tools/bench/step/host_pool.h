// The KV of the requests in this host's memory, and a source that a working set reads it through.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "oasiskv/sequence_source.h"

namespace oasiskv::bench::step {

// Thread contract: immutable after Create.
//
// As many sequences of random KV as `limit_bytes` hold (no more than `wanted`, at least one),
// frames as a daemon lays them out, registered with the GPUs. Requests beyond share them: each
// entry that a gather reads is then still random over all of the memory.
class HostPool {
 public:
  static absl::StatusOr<std::shared_ptr<const HostPool>> Create(const Geometry& geometry,
                                                                uint32_t blocks, uint32_t wanted,
                                                                uint64_t limit_bytes, uint64_t seed,
                                                                cudaStream_t stream);
  ~HostPool();
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  const Geometry& geometry() const { return geometry_; }
  uint32_t blocks() const { return blocks_; }        // of a sequence
  uint32_t sequences() const { return sequences_; }  // that are distinct
  uint64_t bytes() const { return bytes_; }
  const std::byte* Frame(uint32_t sequence, uint32_t block) const {
    return memory_ + (uint64_t{sequence} * blocks_ + block) * geometry_.frame_stride();
  }
  std::span<const std::byte> memory() const { return {memory_, bytes_}; }

 private:
  HostPool(const Geometry& geometry, uint32_t blocks) : geometry_(geometry), blocks_(blocks) {}
  absl::Status Map();
  absl::Status Fill(uint64_t seed, cudaStream_t stream);

  const Geometry geometry_;
  const uint32_t blocks_;
  uint32_t sequences_ = 0;
  uint64_t bytes_ = 0;
  std::byte* memory_ = nullptr;
  std::shared_ptr<const void> registration_;
};

// A request whose prefill is sequence `sequence % pool.sequences()`, of `tokens` tokens.
std::shared_ptr<EntrySource> MakePoolSource(std::shared_ptr<const HostPool> pool, uint32_t sequence,
                                            uint64_t tokens);

}  // namespace oasiskv::bench::step
