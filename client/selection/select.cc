#include "client/selection/select.h"

#include <algorithm>
#include <tuple>

namespace oasiskv {

void Selector::Select(uint32_t head, std::span<const int32_t> predicted, int32_t promoted,
                      uint32_t cap, uint64_t now, std::span<const int32_t> map,
                      std::span<uint64_t> stamps, std::vector<Change>* changes,
                      SelectCounts* counts) {
  const uint32_t pages = static_cast<uint32_t>(map.size());
  kept_.assign(pages, false);
  for (uint32_t p = 0; p < pages; ++p) {
    if (map[p] != kNoBlock) page_of_[map[p]] = p + 1;
  }
  const auto end = std::find(predicted.begin(), predicted.end(), kNoBlock);
  for (auto it = predicted.begin(); it != end; ++it) {
    ++counts->predicted;
    if (page_of_[*it] == 0) continue;
    const uint32_t page = page_of_[*it] - 1;
    kept_[page] = true;
    stamps[page] = now;
    ++counts->hit;
  }

  victims_.clear();
  for (uint32_t p = 0; p < pages; ++p) {
    if (!kept_[p]) victims_.push_back(p);
  }
  std::sort(victims_.begin(), victims_.end(), [&](uint32_t a, uint32_t b) {
    return std::tuple(map[a] != kNoBlock, map[a] == kNoBlock ? 0 : stamps[a], a) <
           std::tuple(map[b] != kNoBlock, map[b] == kNoBlock ? 0 : stamps[b], b);
  });

  // There is a victim for every miss: a list has at most as many blocks as there are pages.
  size_t next = 0;
  uint32_t admitted = 0;
  if (promoted != kNoBlock) {
    changes->push_back(
        {.head = head, .page = victims_[next++], .block = promoted, .promoted = true});
  }
  for (auto it = predicted.begin(); it != end; ++it) {
    if (page_of_[*it] != 0 || *it == promoted) continue;
    if (admitted == cap) {
      ++counts->refused;
      continue;
    }
    ++admitted;
    changes->push_back({.head = head, .page = victims_[next++], .block = *it});
  }

  for (int32_t block : map) {
    if (block != kNoBlock) page_of_[block] = 0;
  }
}

uint32_t Selector::CountCommon(std::span<const int32_t> a, std::span<const int32_t> b) {
  uint32_t common = 0;
  for (int32_t block : a) {
    if (block == kNoBlock) break;
    page_of_[block] = 1;
  }
  for (int32_t block : b) {
    if (block == kNoBlock) break;
    common += page_of_[block];
  }
  for (int32_t block : a) {
    if (block == kNoBlock) break;
    page_of_[block] = 0;
  }
  return common;
}

void IncludePromoted(std::span<int32_t> predicted, int32_t promoted) {
  for (int32_t& block : predicted) {
    if (block == promoted) return;
    if (block == kNoBlock) {
      block = promoted;
      return;
    }
  }
  predicted.back() = promoted;
}

}  // namespace oasiskv
