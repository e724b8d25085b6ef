#include "client/working_set/cpu/job.h"

#include <algorithm>

#include "oasiskv/error.h"

namespace oasiskv {

std::vector<SourceFetch> GatherFetches(LayerIndex layer, std::span<Row* const> rows,
                                       uint32_t entry_bytes, StagingPool* staging) {
  std::vector<SourceFetch> fetches;
  for (Row* const at : rows) {
    Row& row = *at;
    row.to_fetch = std::count_if(row.changes.begin(), row.changes.end(),
                                 [](const Change& change) { return !change.promoted; });
    if (row.to_fetch == 0) continue;
    if (row.check_health) {
      row.status = row.source->Health();
      if (!row.status.ok()) continue;
    }
    const auto same = std::find_if(fetches.begin(), fetches.end(), [&](const SourceFetch& fetch) {
      return fetch.source.get() == row.source.get();
    });
    row.fetch = same - fetches.begin();
    if (same == fetches.end()) fetches.emplace_back().source = row.source;
    for (const Change& change : row.changes) {
      if (change.promoted) continue;
      fetches[row.fetch].reads.push_back(
          {BlockIndex(change.block), layer, HeadIndex(change.head), nullptr});
    }
  }
  std::vector<size_t> next(fetches.size(), 0);
  for (SourceFetch& fetch : fetches) {
    fetch.staging = staging->Take(fetch.reads.size() * uint64_t{entry_bytes});
    for (size_t i = 0; i < fetch.reads.size(); ++i) {
      fetch.reads[i].into = fetch.staging->data.get() + i * uint64_t{entry_bytes};
    }
  }
  for (Row* const at : rows) {
    Row& row = *at;
    if (row.fetch == kNoFetch) continue;
    for (Change& change : row.changes) {
      if (!change.promoted) change.from = fetches[row.fetch].reads[next[row.fetch]++].into;
    }
  }
  return fetches;
}

void PostFetch(SourceFetch* fetch, std::chrono::steady_clock::time_point deadline) {
  fetch->pending = fetch->source->Fetch(fetch->reads, deadline);
  if (fetch->pending != nullptr) return;
  fetch->ended = true;
  fetch->status = MakeError(ErrorCode::kInternal, "the source began no read");
}

}  // namespace oasiskv
