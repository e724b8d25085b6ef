// Hands work requests to the device: which part of which batch goes to which queue pair next.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/fabric/verbs/buffers.h"
#include "common/fabric/verbs/client/batch.h"
#include "common/fabric/verbs/client/link.h"
#include "common/fabric/verbs/client/traffic.h"

namespace oasiskv::fabric::verbs {

// Thread contract: guarded by the engine's mutex.
//
// Batches of equal priority take turns, a chunk each. Lower priorities may fill only a part of the
// window, so that a fetch that a step waits for finds room at once.
//
// Where a call returns an error the device takes no work: the caller passes it to Completer::Lose.
class Poster {
 public:
  Poster(const Link& link, Traffic& flight, const RegionTable& regions);

  // The batch has parcels to post; in the queue of its priority already or now.
  void Enqueue(const std::shared_ptr<Batch>& batch);
  // Posts what the window has room for.
  absl::Status Pump();
  // Reads the grant words of `to_check`.
  absl::Status PostWordReads();
  absl::Status PostKeepalive();
  // Forgets every batch that waits.
  void Clear();
  // Memory for a parcel, of one that is done.
  void TakeSpare(std::vector<Stretch>& parcel);

 private:
  Chunk* FillChunk(Batch& batch, uint32_t pair, uint32_t room);
  absl::Status PostChunk(Chunk& chunk, const std::shared_ptr<Batch>& batch);
  void AddRequest(Chunk& chunk, const Stretch& stretch, std::byte* bounce, uint32_t local_key);
  absl::Status Post(Chunk& chunk, ibv_wr_opcode opcode);
  bool FillPlain(Batch& batch, Chunk& chunk, uint32_t most);
  void LeaveFinishedParcel(Batch& batch);
  bool NextRequest(Batch& batch, Chunk& chunk);
  absl::Status PostWordRead(ChunkKind kind, const std::shared_ptr<Batch>& batch, WordSlot slot,
                            uint32_t pair);

  const Link& link_;
  Traffic& traffic_;
  const RegionTable& regions_;
  // The list of the chunk that is made just now.
  std::array<ibv_send_wr, kChunkRequests> list_{};
  ibv_wr_opcode list_opcode_ = IBV_WR_RDMA_READ;  // in each of `list_`
  std::array<ibv_sge, kChunkRequests> pieces_{};
  std::array<std::deque<std::shared_ptr<Batch>>, 3> queues_;  // by priority
  std::vector<std::shared_ptr<Batch>> checks_;                // PostWordReads' own
  std::vector<std::vector<Stretch>> spares_;                  // memory for parcels
};

}  // namespace oasiskv::fabric::verbs
