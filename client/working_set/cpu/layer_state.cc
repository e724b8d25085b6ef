#include "client/working_set/cpu/layer_state.h"

#include <algorithm>
#include <cstring>

namespace oasiskv {

void LayerState::Clear(uint32_t heads, uint32_t resident_blocks) {
  const size_t pages = size_t{heads} * resident_blocks;
  map.assign(pages, kNoBlock);
  stamps.assign(pages, 0);
  fresh.assign(pages, 0);
  predicted.assign(pages, kNoBlock);
  predicted_valid = false;
  clock = 0;
  unattended = 0;
  complete = 0;
  local_tokens = 0;
  job.reset();
  row = nullptr;
}

uint64_t Install(const PagePool& pool, const Geometry& geometry, uint32_t resident_blocks,
                 std::span<const Change> changes, Fetched fetched, uint64_t now,
                 LayerState* state) {
  uint64_t copied = 0;
  for (const Change& change : changes) {
    if (!change.promoted && fetched == Fetched::kNo) continue;
    std::memcpy(pool.Page(state->layer, state->slot, change.head, change.page), change.from,
                geometry.entry_bytes());
    const size_t at = size_t{change.head} * resident_blocks + change.page;
    state->map[at] = change.block;
    state->stamps[at] = now;
    state->unattended -= state->fresh[at];  // evicted before it was ever attended
    state->fresh[at] = change.promoted ? 0 : 1;
    state->unattended += state->fresh[at];
    copied += change.promoted ? 0 : 1;
  }
  return copied;
}

uint64_t MarkAttended(LayerState* state) {
  const uint64_t pages = state->unattended;
  if (pages != 0) {
    std::fill(state->fresh.begin(), state->fresh.end(), 0);
    state->unattended = 0;
  }
  return pages;
}

}  // namespace oasiskv
