// Checks the pieces of a batch and joins adjacent ones into runs, one at a time and without a list
// of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

#include "absl/status/status.h"
#include "common/fabric/fabric.h"

namespace oasiskv::fabric {

// The remote and the local half of a piece, whichever way its bytes go.
inline const RemoteRange& RemoteOf(const ReadPiece& piece) { return piece.from; }
inline const RemoteRange& RemoteOf(const WritePiece& piece) { return piece.into; }
inline std::byte* LocalOf(const ReadPiece& piece) { return piece.into; }
inline const std::byte* LocalOf(const WritePiece& piece) { return piece.from; }

// OK when every piece names a block of the grant, has a length, ends within frame_bytes and has a
// buffer. Otherwise OUT_OF_RANGE (INVALID_ARGUMENT for a missing buffer) naming the index of the
// first bad piece.
absl::Status CheckPieces(const GrantView& grant, std::span<const ReadPiece> pieces);
absl::Status CheckPieces(const GrantView& grant, std::span<const WritePiece> pieces);

// Pieces that are one contiguous stretch on both sides.
template <typename Piece>
struct Run {
  using Local = std::conditional_t<std::is_same_v<Piece, ReadPiece>, std::byte*, const std::byte*>;

  FrameAddress address;  // where the stretch starts in its arena
  uint64_t bytes = 0;
  Local local = nullptr;
  uint32_t block = 0;  // of the first piece: the same place as (block, offset in its frame)
  uint32_t offset = 0;
  size_t first_piece = 0;  // index in the batch
  size_t pieces = 0;
};

// kWithinFrame for fabrics whose requests name (block, offset, length); kAcrossFrames for those
// that use addresses.
enum class FrameSpan : uint8_t { kWithinFrame, kAcrossFrames };

// Thread contract: used by one thread.
//
// Iterates the runs of pieces that CheckPieces found good, in the batch's order. `grant` and the
// pieces must outlive it. A run is never longer than `max_bytes`, unless it is a single piece.
// Memory: a few words, whatever the batch.
template <typename Piece>
class RunIterator {
 public:
  RunIterator(const GrantView& grant, std::span<const Piece> pieces, FrameSpan span,
              uint64_t max_bytes = std::numeric_limits<uint64_t>::max())
      : frames_(grant.frames), pieces_(pieces), span_(span), max_bytes_(max_bytes) {}

  // False, leaving `run` alone, when there are no more.
  bool Next(Run<Piece>& run) {
    if (next_ == pieces_.size()) return false;
    const RemoteRange& first = RemoteOf(pieces_[next_]);
    run.address = frames_[first.block];
    run.address.offset += first.offset;
    run.bytes = first.length;
    run.local = LocalOf(pieces_[next_]);
    run.block = first.block;
    run.offset = first.offset;
    run.first_piece = next_;
    while (++next_ < pieces_.size() && Continues(run, pieces_[next_])) {
      run.bytes += RemoteOf(pieces_[next_]).length;
    }
    run.pieces = next_ - run.first_piece;
    return true;
  }

 private:
  bool Continues(const Run<Piece>& run, const Piece& piece) const {
    if (run.local + run.bytes != LocalOf(piece)) return false;
    const RemoteRange& range = RemoteOf(piece);
    if (range.length > max_bytes_ || run.bytes > max_bytes_ - range.length) return false;
    if (range.block == run.block) return run.offset + run.bytes == range.offset;
    if (span_ == FrameSpan::kWithinFrame) return false;
    const FrameAddress& frame = frames_[range.block];
    return frame.arena == run.address.arena &&
           frame.offset + range.offset == run.address.offset + run.bytes;
  }

  const std::span<const FrameAddress> frames_;
  const std::span<const Piece> pieces_;
  const FrameSpan span_;
  const uint64_t max_bytes_;
  size_t next_ = 0;
};

}  // namespace oasiskv::fabric
