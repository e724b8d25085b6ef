#include "server/lease/range_check.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::server {

RangeChecker::RangeChecker(const Geometry& geometry, uint32_t blocks, uint32_t first_head,
                           uint32_t head_count)
    : blocks_(blocks),
      heads_(geometry.kv_heads),
      first_head_(first_head),
      head_count_(head_count),
      entry_bytes_(geometry.entry_bytes()),
      summary_bytes_(geometry.summary_bytes()),
      summaries_offset_(geometry.summaries_offset()),
      frame_bytes_(geometry.frame_bytes()) {}

absl::Status RangeChecker::Check(const fabric::RemoteRange& range, size_t index,
                                 TouchedLayers& touched) const {
  touched = {};
  if (range.block >= blocks_) {
    return MakeError(ErrorCode::kOutOfRange,
                     absl::StrFormat("range %d: block %d, the grant has %d blocks", index,
                                     range.block, blocks_));
  }
  const uint64_t begin = range.offset;
  const uint64_t end = begin + range.length;
  if (range.length == 0 || end > frame_bytes_) {
    return MakeError(ErrorCode::kOutOfRange,
                     absl::StrFormat("range %d: bytes [%d, %d) of block %d, a frame has %d", index,
                                     begin, end, range.block, frame_bytes_));
  }
  if (begin < summaries_offset_) {
    OASISKV_RETURN_IF_ERROR(CheckPart(begin, std::min(end, summaries_offset_), entry_bytes_,
                                      "entry", range, index, touched.entries));
  }
  if (end > summaries_offset_) {
    OASISKV_RETURN_IF_ERROR(CheckPart(std::max(begin, summaries_offset_) - summaries_offset_,
                                      end - summaries_offset_, summary_bytes_, "summary", range,
                                      index, touched.summaries));
  }
  return absl::OkStatus();
}

absl::Status RangeChecker::CheckPart(uint64_t begin, uint64_t end, uint32_t piece_bytes,
                                     const char* what, const fabric::RemoteRange& range,
                                     size_t index, LayerSpan& span) const {
  const uint32_t first = static_cast<uint32_t>(begin / piece_bytes);
  const uint32_t last = static_cast<uint32_t>((end - 1) / piece_bytes);
  span = {first / heads_, last / heads_};
  if (head_count_ == heads_) return absl::OkStatus();
  // Pieces lie [layer][head]: a range over two layers passes through every head between, the last
  // and the first included.
  const uint32_t low = first % heads_;
  const uint32_t high = last % heads_;
  const bool covered =
      span.first == span.last && low >= first_head_ && high < first_head_ + head_count_;
  if (covered) return absl::OkStatus();
  uint32_t foreign = first;
  while (foreign % heads_ >= first_head_ && foreign % heads_ < first_head_ + head_count_) ++foreign;
  return MakeError(
      ErrorCode::kForeign,
      absl::StrFormat("range %d: the %s of block %d, layer %d, head %d is outside the attached "
                      "heads [%d, %d)",
                      index, what, range.block, foreign / heads_, foreign % heads_, first_head_,
                      first_head_ + head_count_));
}

}  // namespace oasiskv::server
