#include "client/working_set/first_residents.h"

#include <span>

#include "absl/strings/str_format.h"
#include "client/selection/select.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv {
namespace {

struct Place {
  uint32_t layer = 0, head = 0;
};

// Blocks of `list` below `complete`, each once, `most` at most. `taken`: all false between calls.
absl::Status TakeList(Place place, std::span<const int32_t> list, int64_t blocks, int64_t complete,
                      uint32_t most, std::vector<bool>* taken, std::vector<int32_t>* chosen) {
  for (size_t i = 0; i < list.size(); ++i) {
    const int32_t block = list[i];
    if (block == kNoBlock) continue;
    if (block < 0 || block >= blocks) {
      return MakeError(ErrorCode::kOutOfRange,
                       absl::StrFormat("first top-K, layer %d, head %d, item %d: block %d is not "
                                       "one of the %d",
                                       place.layer, place.head, i, block, blocks));
    }
    // The partly filled last block is the local one: resident anyway.
    if (block >= complete || (*taken)[block]) continue;
    if (chosen->size() == most) break;
    (*taken)[block] = true;
    chosen->push_back(block);
  }
  for (int32_t block : *chosen) (*taken)[block] = false;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> FirstResidents(const Geometry& geometry,
                                                    uint32_t resident_blocks,
                                                    const EntrySource& source) {
  uint32_t k = 0;
  const std::vector<int32_t> first = source.FirstTopK(&k);
  const size_t lists = size_t{geometry.layers} * geometry.kv_heads;
  if (k > 0 && first.size() != lists * k) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        absl::StrFormat("the first top-K has %d items; %d layers x %d heads x %d "
                        "are %d",
                        first.size(), geometry.layers, geometry.kv_heads, k, lists * k));
  }
  const auto complete = static_cast<int64_t>(source.token_count() / geometry.block_tokens);
  std::vector<int32_t> maps(lists * resident_blocks, kNoBlock);
  std::vector<int32_t> chosen;
  std::vector<bool> taken(complete);
  for (size_t l = 0; l < lists; ++l) {
    chosen.clear();
    if (k == 0) {
      for (int64_t b = complete; b > 0 && chosen.size() < resident_blocks; --b) {
        chosen.push_back(static_cast<int32_t>(b - 1));
      }
    } else {
      const Place place{.layer = static_cast<uint32_t>(l / geometry.kv_heads),
                        .head = static_cast<uint32_t>(l % geometry.kv_heads)};
      OASISKV_RETURN_IF_ERROR(TakeList(place, std::span(first).subspan(l * k, k),
                                       geometry.BlocksFor(source.token_count()), complete,
                                       resident_blocks, &taken, &chosen));
    }
    int32_t* const map = &maps[l * resident_blocks];
    for (size_t i = 0; i < chosen.size(); ++i) map[chosen.size() - 1 - i] = chosen[i];
  }
  return maps;
}

}  // namespace oasiskv
