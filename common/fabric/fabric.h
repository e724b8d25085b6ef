// The data plane as the client sees it: batches of reads and writes of frame ranges under a grant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "oasiskv/ids.h"

namespace oasiskv::fabric {

// What the grant word says. While a grant is valid its word is its epoch (top bit 0). On revocation
// the daemon stores RevokedWord(reason) *before* it lets go of a frame. A free slot holds 0.
enum class RevokeReason : uint8_t { kReleased = 1, kExpired = 2, kAborted = 3 };
constexpr uint64_t kRevokedBit = uint64_t{1} << 63;
constexpr uint64_t RevokedWord(RevokeReason reason, Epoch epoch) {
  return kRevokedBit | (uint64_t{static_cast<uint8_t>(reason)} << 56) |
         (epoch.value() & ((uint64_t{1} << 56) - 1));
}
// OK when `word` is `epoch`; LEASE_EXPIRED when it is this epoch's revocation by expiry; STALE
// otherwise.
absl::Status CheckGrantWord(uint64_t word, Epoch epoch);

enum class Access : uint8_t { kRead, kWrite };

// What a fabric must know of a grant; immutable, shared by every transfer under it.
struct GrantView {
  GrantId id;
  Epoch epoch;
  WordSlot word_slot;
  Access access = Access::kRead;
  uint64_t frame_bytes = 0;          // no range may end beyond it
  std::vector<FrameAddress> frames;  // by block
};

// Bytes [offset, offset + length) of the frame of one block.
struct RemoteRange {
  uint32_t block = 0;
  uint32_t offset = 0;
  uint32_t length = 0;
};

struct ReadPiece {
  RemoteRange from;
  std::byte* into = nullptr;
};

struct WritePiece {
  RemoteRange into;
  const std::byte* from = nullptr;
};

// Where the time of a transfer went.
struct TransferTimes {
  Duration prepare{0};  // checking and coalescing
  Duration post{0};     // handing work to the fabric
  Duration wire{0};     // from the end of post to the last byte and the grant check
};

// Thread contract: used by one thread at a time (any thread).
//
// One batch in flight. Whatever ends it, from the moment that Wait or Cancel has returned (or the
// destructor has run) nothing writes to its buffers any more.
class Transfer {
 public:
  virtual ~Transfer() = default;  // implementations cancel and wait for quiescence
  // True when the outcome is known; never blocks.
  virtual bool Done() = 0;
  // Blocks until the batch ended, at the latest shortly after its deadline. OK: all bytes arrived
  // and afterwards the grant word still held the epoch. Otherwise the buffers' contents mean
  // nothing: STALE, LEASE_EXPIRED, DEADLINE_EXCEEDED, CANCELLED, PEER_LOST, or what the daemon
  // refused with. Repeated calls give the same answer.
  virtual absl::Status Wait() = 0;
  // Ends the batch as CANCELLED unless it has ended; returns when nothing can write to its buffers.
  virtual void Cancel() = 0;
  virtual TransferTimes Times() const = 0;
};

struct ConnectionStats {
  uint64_t reads = 0, writes = 0;  // batches
  uint64_t pieces = 0;             // as asked
  uint64_t requests = 0;           // after coalescing
  uint64_t bytes_read = 0, bytes_written = 0;
  // Of these over verbs: moved between the wire and the caller's registered memory, and by way of
  // memory of the connection's own.
  uint64_t bytes_direct = 0, bytes_bounced = 0;
  uint64_t request_bytes = 0;  // sent to ask for data (0 for shm)
  uint64_t grant_checks = 0;   // grant words looked at after data
  uint64_t stale = 0, expired = 0, deadline = 0, cancelled = 0,
           failed = 0;  // batches, by how they ended
};

// What a grant's frames and its word are as memory of this process.
struct LocalMemory {
  std::vector<const std::byte*> frames;  // by block; frame_bytes each
  const uint64_t* word = nullptr;
  std::vector<std::span<const std::byte>> mappings;  // whole, that hold the frames and the word
};

// Which batch goes first where a fabric queues: what a step waits for, what the next will need, and
// all else.
enum class Priority : uint8_t { kOnPath = 0, kPrefetch = 1, kBackground = 2 };

// Thread contract: a move-only owner, used by one thread at a time.
//
// A stretch of the caller's memory that the fabric moves bytes to and from directly; given up when
// it is destroyed, which must be after the batches that use the stretch have ended and before the
// memory is unmapped.
class BufferRegistration {
 public:
  virtual ~BufferRegistration() = default;
};

// Memory of a GPU (or of another device) that is known to the kernel as a dma-buf.
struct DeviceBuffer {
  int dmabuf_fd = -1;   // only needed while it is registered
  uint64_t offset = 0;  // of the first byte in the dma-buf
  uint64_t bytes = 0;
  uint64_t address = 0;  // of the first byte, as the device counts: pieces name it by this
};

// Thread contract: safe for concurrent use.
//
// The control plane, for connections of a fabric whose peers have no socket between them: calls
// that end in the Endpoint of the daemon.
class ControlPlane {
 public:
  virtual ~ControlPlane() = default;
  // Carries the client's hello there and gives the endpoint's answer; both are bytes of the fabric.
  virtual absl::StatusOr<std::string> Accept(const std::string& hello) = 0;
  virtual void Fence(ConnectionId connection, GrantId grant) = 0;
  virtual void Close(ConnectionId connection) = 0;
};

// Thread contract: safe for concurrent use.
//
// One client's data connection to one daemon. Pieces and their buffers must stay as they are until
// the transfer ended; the pieces array itself may go when Read or Write has returned. Adjacent
// pieces are coalesced. A piece outside the grant's frames, of length 0 or beyond frame_bytes ends
// the batch as OUT_OF_RANGE, naming the index, before anything moves.
class Connection {
 public:
  virtual ~Connection() = default;
  virtual std::unique_ptr<Transfer> Read(std::shared_ptr<const GrantView> grant,
                                         std::span<const ReadPiece> pieces,
                                         MonotonicTime deadline) = 0;
  // Fabrics that do not queue read at once, whatever the priority.
  virtual std::unique_ptr<Transfer> ReadWithPriority(std::shared_ptr<const GrantView> grant,
                                                     std::span<const ReadPiece> pieces,
                                                     MonotonicTime deadline, Priority priority) {
    return Read(std::move(grant), pieces, deadline);
  }
  // Spares batches whose buffers lie in `memory` a copy, where the fabric would make one; null
  // where it makes none.
  virtual absl::StatusOr<std::unique_ptr<BufferRegistration>> RegisterBuffer(
      std::span<std::byte> memory) {
    return nullptr;
  }
  // For memory of a device. A piece in it must lie in one registration wholly: it cannot be copied.
  // UNSUPPORTED naming what lacks it, where this fabric, library, kernel or driver cannot.
  virtual absl::StatusOr<std::unique_ptr<BufferRegistration>> RegisterDeviceBuffer(
      const DeviceBuffer& memory);
  // The grant must be a writer's. A write that the daemon (or the grant word) refuses ends as
  // STALE, LEASE_EXPIRED, ...
  virtual std::unique_ptr<Transfer> Write(std::shared_ptr<const GrantView> grant,
                                          std::span<const WritePiece> pieces,
                                          MonotonicTime deadline) = 0;
  // Promises that no write under `grant` is in flight or will be started: refuses new ones (STALE),
  // waits for running ones, then tells the daemon, which may then reuse the memory. Called before a
  // writer's grant is given up and when it is lost.
  virtual void FenceWriter(GrantId grant) = 0;
  // OK, or PEER_LOST with the reason once the daemon is known to be gone; never OK again after
  // that.
  virtual absl::Status Health() = 0;
  // Where the grant's bytes may be read in place, as long as the connection lives: rule 2 of the
  // word (look at it after the bytes) is then the caller's to keep. UNSUPPORTED where they are not
  // this host's memory.
  virtual bool local() const { return false; }
  virtual absl::StatusOr<LocalMemory> Local(const GrantView& grant) const;
  // The fabric's name in the table.
  virtual absl::string_view fabric() const = 0;
  // For OpenRequest.writer_connection; zero where the daemon checks every write itself.
  virtual ConnectionId connection_id() const = 0;
  // One line for people: fabric, endpoint, transport chosen.
  virtual std::string Describe() const = 0;
  virtual ConnectionStats Stats() const = 0;
};

}  // namespace oasiskv::fabric
