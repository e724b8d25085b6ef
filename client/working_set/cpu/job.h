// One layer's work between two steps: what Submit hands to the stages.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "client/selection/select.h"
#include "client/working_set/cpu/layer_state.h"
#include "client/working_set/cpu/staging.h"
#include "oasiskv/ids.h"
#include "oasiskv/sequence_source.h"

namespace oasiskv {

// Who may touch a row. Every transition is made under Pipeline's lock by the thread named.
//
//   kQueued     -> kSelecting   select stage
//   kSelecting  -> kPlanned     select stage: the plan stands, reads are about to be posted
//   kPlanned    -> kInstalling  transfer stage, when the bytes are there and attention is done
//   kInstalling -> kSettled     transfer stage (or Wait, below)
//   kQueued, kPlanned -> kInstalling   Wait at its deadline, when the bytes have not arrived:
//                                      installs what needs no source
//   kQueued, kPlanned -> kSettled      Leave: nothing more is installed
enum class RowPhase { kQueued, kSelecting, kPlanned, kInstalling, kSettled };

inline constexpr size_t kNoFetch = ~size_t{0};

// One request of a job.
struct Row {
  // Constant after Submit.
  RequestSlot slot;
  LayerState* state = nullptr;          // outlives the row's time in the stages
  std::shared_ptr<EntrySource> source;  // a row keeps its source alive
  uint32_t candidates = 0;              // blocks [0, candidates) may be chosen
  int32_t promoted = kNoBlock;          // the block that the local page completed in this step
  bool predicts = false;                // false: only a promotion
  bool check_health = false;            // its source failed before: ask it before reading
  uint64_t now = 0;                     // this selection's stamp
  const float* queries = nullptr;       // [query_head][head_dim] in the job, or null (ready top-K)

  // Written by the predict stage, then by select while kSelecting; read-only from kPlanned on.
  std::vector<int32_t> predicted;  // [head][K]
  std::vector<Change> changes;
  std::vector<std::byte> completed;  // [head][entry] of `promoted`
  SelectCounts counts;
  uint64_t to_fetch = 0;    // changes that come from the source
  size_t fetch = kNoFetch;  // index of its read in the job

  // Guarded by Pipeline's lock.
  RowPhase phase = RowPhase::kQueued;
  bool attention_done = false;
  bool dropped = false;     // Leave took it out
  bool arrived = false;     // its bytes are in staging: the rest is a copy, and it is late no more
  bool gave_up = false;     // Wait's deadline passed before it was installed
  bool unplanned = false;   // ... and even before it was selected
  bool released = false;    // no stage will touch its state again
  uint64_t fetched = 0;     // entries installed from the source
  absl::Status status;      // of its source's read
  absl::Status write_back;  // of `promoted`; may still come after Wait gave the row up
  bool reached_install = false;  // transfer stage's: its bytes were seen to be there
};

// One read that serves all rows of one source.
struct SourceFetch {
  std::shared_ptr<EntrySource> source;
  std::vector<EntryRead> reads;
  StagingPool::Buffer staging;
  std::unique_ptr<PendingFetch> pending;
  bool ended = false;
  absl::Status status;
};

struct Job {
  LayerIndex layer;
  std::chrono::steady_clock::time_point deadline;
  std::vector<float> queries;
  std::vector<Row> rows;
  std::vector<SourceFetch> fetches;
};

// Puts the misses of all rows together, one SourceFetch per source, with staging places for their
// bytes. A row whose source is known to be down gets its status instead, and no read.
std::vector<SourceFetch> GatherFetches(LayerIndex layer, std::span<Row* const> rows,
                                       uint32_t entry_bytes, StagingPool* staging);

// Starts a read. An `ended` one with a status when the source gives none.
void PostFetch(SourceFetch* fetch, std::chrono::steady_clock::time_point deadline);

}  // namespace oasiskv
