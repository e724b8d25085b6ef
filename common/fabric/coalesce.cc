#include "common/fabric/coalesce.h"

#include "absl/strings/str_format.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric {
namespace {

// Out of line, so that the loop over good pieces stays small.
absl::Status BadPiece(const GrantView& grant, size_t index, const RemoteRange& range) {
  if (range.block >= grant.frames.size()) {
    return MakeError(ErrorCode::kOutOfRange,
                     absl::StrFormat("piece %d names block %d; the grant has %d blocks", index,
                                     range.block, grant.frames.size()));
  }
  if (range.length == 0) {
    return MakeError(ErrorCode::kOutOfRange, absl::StrFormat("piece %d has length 0", index));
  }
  if (range.offset > grant.frame_bytes || range.length > grant.frame_bytes - range.offset) {
    return MakeError(
        ErrorCode::kOutOfRange,
        absl::StrFormat("piece %d: %d bytes from offset %d end beyond the frame of %d bytes", index,
                        range.length, range.offset, grant.frame_bytes));
  }
  return MakeError(ErrorCode::kInvalidArgument,
                   absl::StrFormat("piece %d has a null buffer", index));
}

template <typename Piece>
absl::Status Check(const GrantView& grant, std::span<const Piece> pieces) {
  const uint64_t blocks = grant.frames.size();
  const uint64_t frame_bytes = grant.frame_bytes;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const RemoteRange& range = RemoteOf(pieces[i]);
    // Both are 32-bit numbers: their sum cannot wrap in 64 bits.
    const uint64_t end = uint64_t{range.offset} + range.length;
    if (range.block >= blocks || range.length == 0 || end > frame_bytes ||
        LocalOf(pieces[i]) == nullptr) {
      return BadPiece(grant, i, range);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPieces(const GrantView& grant, std::span<const ReadPiece> pieces) {
  return Check(grant, pieces);
}

absl::Status CheckPieces(const GrantView& grant, std::span<const WritePiece> pieces) {
  return Check(grant, pieces);
}

}  // namespace oasiskv::fabric
