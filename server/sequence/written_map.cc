#include "server/sequence/written_map.h"

#include <algorithm>

namespace oasiskv::server {

void WrittenMap::Add(uint32_t block, uint32_t begin, uint32_t end) {
  if (block >= blocks_.size()) blocks_.resize(size_t{block} + 1);
  std::vector<Piece>& pieces = blocks_[block];
  // The pieces that touch [begin, end) are those of [first, last).
  const auto first = std::lower_bound(pieces.begin(), pieces.end(), begin,
                                      [](const Piece& p, uint32_t at) { return p.end < at; });
  const auto last = std::upper_bound(first, pieces.end(), end,
                                     [](uint32_t at, const Piece& p) { return at < p.begin; });
  if (first == last) {
    if (pieces.size() < kMostPieces) pieces.insert(first, {begin, end});
    return;
  }
  first->begin = std::min(first->begin, begin);
  first->end = std::max(std::prev(last)->end, end);
  pieces.erase(std::next(first), last);
}

bool WrittenMap::Covers(uint32_t block, uint32_t begin, uint32_t end) const {
  if (block >= blocks_.size()) return false;
  const std::vector<Piece>& pieces = blocks_[block];
  const auto piece = std::upper_bound(pieces.begin(), pieces.end(), begin,
                                      [](uint32_t at, const Piece& p) { return at < p.end; });
  return piece != pieces.end() && piece->begin <= begin && end <= piece->end;
}

uint64_t WrittenMap::bytes() const {
  uint64_t bytes = blocks_.capacity() * sizeof(std::vector<Piece>);
  for (const auto& pieces : blocks_) bytes += pieces.capacity() * sizeof(Piece);
  return bytes;
}

}  // namespace oasiskv::server
