// The control plane (oasiskv.v1.KvMemory) in the client's own types; the only part of the sessions
// that knows gRPC.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/fabric/registry.h"
#include "oasiskv/error.h"
#include "oasiskv/geometry.h"
#include "oasiskv/ids.h"

namespace oasiskv::client {

struct DaemonInfo {
  std::string version;
  uint64_t incarnation = 0;
  std::vector<fabric::EndpointInfo> endpoints;  // of the fabrics that it serves
  uint64_t max_blob_bytes = 0;
  bool draining = false;
};

struct GrantKey {
  GrantId id;
  Epoch epoch;
};

struct LayerBlocks {
  uint32_t first_layer = 0, layer_count = 0, first_block = 0, block_count = 0;
};

// A grant as it came; its lease runs from `sent`, the moment the call was sent.
struct GivenGrant {
  GrantKey key;
  WordSlot word_slot;
  Duration lease{0};
  MonotonicTime sent;
  std::vector<FrameAddress> frames;
  SequenceId sequence{};
};

// A new one, which no other call has.
CallToken DrawToken();

struct OpenCall {
  std::string name;
  Identity identity;
  Geometry geometry;
  uint32_t blocks = 0;
  Duration lease{0};
  ConnectionId connection;
  bool checksums = false;
  CallToken token{};
};

struct AttachCall {
  std::string name;
  Identity identity;
  Geometry geometry;
  uint32_t first_head = 0, head_count = 0;
  Duration lease{0};
  Duration wait_for_seal{0};
  CallToken token{};
};

struct Attached {
  GivenGrant grant;
  bool sealed = false;
  uint64_t token_count = 0;
  std::vector<LayerBlocks> committed;  // means nothing when sealed: everything is
  std::vector<int32_t> first_topk;
  uint32_t first_topk_k = 0;
  std::string blob;
  std::vector<uint32_t> checksums;  // [block][layer][head of the shard]; empty: none
};

struct Renewed {
  Duration lease{0};
  MonotonicTime sent;
  uint64_t incarnation = 0;
  struct Lost {
    GrantId id;
    ErrorCode reason = ErrorCode::kStale;
  };
  std::vector<Lost> lost;
};

struct SealCall {
  uint64_t token_count = 0;
  std::vector<int32_t> first_topk;  // [layer][head][k]
  uint32_t first_topk_k = 0;
  std::string blob;
};

// Thread contract: safe for concurrent use.
//
// One channel to one daemon's control port. Every call ends within its timeout. An error carries
// the daemon's code; one of the transport is PEER_LOST (cannot be reached) or DEADLINE_EXCEEDED.
// A call whose answer was lost is repeated a few times: the daemon gives what it gave at first.
// Strings of every message stay far below gRPC's default limit except checksums of an attach, for
// which this side's limit is raised.
class ControlChannel {
 public:
  explicit ControlChannel(const std::string& address);
  ~ControlChannel();

  absl::StatusOr<DaemonInfo> Describe(Duration timeout);
  absl::StatusOr<GivenGrant> Open(const OpenCall& call, Duration timeout);
  // The frames of the new blocks; `first_block`: how many there are.
  absl::StatusOr<std::vector<FrameAddress>> Extend(GrantKey grant, uint32_t first_block,
                                                   uint32_t blocks, Duration timeout);
  absl::Status Commit(GrantKey grant, std::span<const LayerBlocks> ranges,
                      std::span<const uint32_t> checksums, Duration timeout);
  absl::Status Seal(GrantKey grant, const SealCall& call, Duration timeout);
  // `timeout` beyond call.wait_for_seal.
  absl::StatusOr<Attached> Attach(const AttachCall& call, Duration timeout);
  absl::StatusOr<Renewed> Renew(std::span<const GrantKey> grants, Duration lease, Duration timeout);
  absl::Status Release(std::span<const GrantKey> grants, Duration timeout);
  // The number that existed.
  absl::StatusOr<uint32_t> ReleaseSequences(const std::vector<std::string>& names,
                                            const Identity& identity, CallToken token,
                                            Duration timeout);
  // A zero `sequence`: all that have the name.
  absl::StatusOr<uint32_t> Abort(const std::string& name, SequenceId sequence,
                                 const Identity& identity, const std::string& reason,
                                 CallToken token, Duration timeout);
  // Ends what an Open made whose answer never came.
  absl::Status AbandonOpen(CallToken open, Duration timeout);

  // A data connection that is made over the control plane: the fabric's hello and the daemon's
  // answer to it, its fences and its end.
  absl::StatusOr<std::string> ConnectFabric(const std::string& fabric,
                                            const std::string& client_hello, Duration timeout);
  absl::Status FenceWriter(const std::string& fabric, ConnectionId connection, GrantId grant,
                           Duration timeout);
  absl::Status DisconnectFabric(const std::string& fabric, ConnectionId connection,
                                Duration timeout);

 private:
  struct Rpc;
  const std::unique_ptr<Rpc> rpc_;
};

}  // namespace oasiskv::client
