#include "common/fabric/verbs/client/traffic.h"

#include <utility>

namespace oasiskv::fabric::verbs {

Traffic::Traffic(std::vector<Pair> queue_pairs, uint32_t places, BouncePool bounce_pool)
    : bounce(std::move(bounce_pool)), chunks(places), pairs(std::move(queue_pairs)) {
  for (uint32_t i = places; i-- > 0;) {
    chunks[i].id = uint64_t{i} << kPlaceShift;
    free_chunks.push_back(i);
  }
}

Chunk* Traffic::Take(ChunkKind kind, uint32_t pair) {
  if (free_chunks.empty()) return nullptr;
  Chunk& chunk = chunks[free_chunks.back()];
  free_chunks.pop_back();
  chunk.kind = kind;
  chunk.pair = pair;
  return &chunk;
}

void Traffic::Give(Chunk& chunk) {
  if (chunk.area.has_value()) bounce.Give(*chunk.area);
  chunk.id += uint64_t{1} << kUseShift;
  chunk.count = 0;
  chunk.bytes = chunk.bounced = 0;
  chunk.bounced_requests = 0;
  chunk.failed = chunk.direct = false;
  chunk.area.reset();
  chunk.batch.reset();
  chunk.regions.clear();
  free_chunks.push_back(static_cast<uint32_t>(&chunk - chunks.data()));
}

std::optional<uint32_t> Traffic::FreestPair(uint32_t limit) const {
  uint32_t fewest = limit;
  uint32_t best = 0;
  for (uint32_t i = 0; i < pairs.size(); ++i) {
    if (pairs[i].outstanding >= fewest || pairs[i].broken) continue;
    fewest = pairs[i].outstanding;
    best = i;
  }
  if (fewest == limit) return std::nullopt;
  return best;
}

}  // namespace oasiskv::fabric::verbs
