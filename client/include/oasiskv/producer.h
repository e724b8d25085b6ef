// The prefill side: writes one sequence.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "oasiskv/export.h"
#include "oasiskv/geometry.h"
#include "oasiskv/selection.h"

namespace oasiskv {

struct ProducerSpec {
  std::string name;  // unique among live sequences of the tenant
  Identity identity;
  Geometry geometry;
  uint32_t blocks = 0;                // frames to reserve now; Extend reserves more
  bool checksums = false;             // give the daemon a CRC32C of every entry
  std::chrono::nanoseconds lease{0};  // 0: the client's
};

// Keys (or values) of consecutive tokens in the caller's memory, in the geometry's element type:
// element (token t, head h, dim d) lies at
//   base + t * token_stride + h * head_stride + d * element size, strides in bytes.
struct KvView {
  const std::byte* base = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
};

struct SealSpec {
  uint64_t token_count = 0;
  // Queries of the first decode step after RoPE, float32 [layers][query_heads][head_dim], as an
  // extra decode step on the prefill side gives them. From them each head's top-K is computed here
  // and published; null: no top-K.
  const float* first_queries = nullptr;
  uint32_t query_heads = 0;
  GroupCombine combine = GroupCombine::kMax;
  double bound_weight = kDefaultBoundWeight;  // in [0, 1], see selection.h
  uint32_t top_k = 128;
  std::string blob;  // opaque to the service; at most the daemon's limit
};

// Thread contract: not safe for concurrent use, but different Producers may be used at the same
// time.
//
// The sequence exists from Client::Open on. It ends either sealed, after which the handle has no
// more use, or thrown away: destroying an unsealed Producer aborts the sequence. Only what was
// written whole can be committed.
class OASISKV_EXPORT Producer {
 public:
  Producer(Producer&&) noexcept;
  Producer& operator=(Producer&&) noexcept;
  ~Producer();

  // Reserves `blocks` more. After CAPACITY everything is as before.
  absl::Status Extend(uint32_t blocks);
  // Writes tokens [first_token, first_token + tokens) of one layer, packs them into entries and
  // builds the summaries of the blocks they complete. For each layer tokens come in order without a
  // gap. For Packing::kLatent `values` is ignored. Returns when the bytes are in place. Errors:
  // INVALID_ARGUMENT (out of order; names the expected token), OUT_OF_RANGE (beyond the reserved
  // blocks).
  absl::Status WriteTokens(LayerIndex layer, uint64_t first_token, uint32_t tokens, KvView keys,
                           KvView values);
  // Publishes, for each layer, every block whose tokens are all written. Seal publishes a last block
  // that is only partly filled.
  absl::Status CommitWritten();
  // Publishes layers x blocks. Errors: NOT_COMMITTED (one is not written whole; names the first).
  absl::Status Commit(LayerIndex first_layer, uint32_t layer_count, BlockIndex first_block,
                      uint32_t block_count);
  // Commits what is left, publishes token count, first top-K and blob, and ends the writer's grant.
  // The sequence then lives until it is released. The daemon releases it by itself when no reader
  // has it attached for the daemon's --unattended_ttl (default: 10 minutes).
  absl::Status Seal(const SealSpec& spec);
  // Throws the sequence away.
  absl::Status Abort(const std::string& reason);

  const Geometry& geometry() const;
  uint32_t blocks() const;  // reserved

 private:
  friend class Client;
  class OASISKV_HIDDEN Impl;
  explicit Producer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace oasiskv
