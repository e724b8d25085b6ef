// What one request slot holds at one layer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "client/selection/select.h"
#include "client/working_set/cpu/pages.h"
#include "oasiskv/geometry.h"

namespace oasiskv {

struct Job;
struct Row;

// Thread contract: owned by the driving thread, except that while a job is pending the stage that
// holds the job's row (see RowPhase) reads `map` and `stamps` and, when the row is installed,
// writes pages, `map`, `stamps`, `fresh` and `unattended`.
//
// Invariant: page p of head h holds exactly the entry of block map[h * K + p], or nothing that is
// promised where that is -1. `map` and pages only change together, in Install.
struct LayerState {
  uint32_t layer = 0, slot = 0;
  std::vector<int32_t> map;      // [head][K]
  std::vector<uint64_t> stamps;  // [head][K]; the selection that last chose the page
  std::vector<uint8_t> fresh;    // [head][K]; fetched and not attended yet
  uint64_t clock = 0;            // selections so far
  uint64_t unattended = 0;       // pages with `fresh` set
  uint32_t complete = 0;         // blocks before the local one: the candidates
  uint32_t local_tokens = 0;     // valid tokens of the local block

  // The prediction that was made for the step that goes on now, [head][K].
  std::vector<int32_t> predicted;
  bool predicted_valid = false;

  std::shared_ptr<Job> job;  // pending: submitted and not waited for
  Row* row = nullptr;        // this state's row of `job`

  void Clear(uint32_t heads, uint32_t resident_blocks);
  std::span<const int32_t> HeadMap(uint32_t head, uint32_t k) const {
    return std::span(map).subspan(uint64_t{head} * k, k);
  }
  std::span<uint64_t> HeadStamps(uint32_t head, uint32_t k) {
    return std::span(stamps).subspan(uint64_t{head} * k, k);
  }
};

enum class Fetched { kNo, kYes };

// Copies the entries of `changes` into their pages; those that come from a source only when
// `fetched` says that they are there. Returns how many of those were copied. Pre-condition:
// attention of the step before is done and the next has not begun.
uint64_t Install(const PagePool& pool, const Geometry& geometry, uint32_t resident_blocks,
                 std::span<const Change> changes, Fetched fetched, uint64_t now, LayerState* state);

// Attention has read every resident page. Returns how many fetched pages it read for the first
// time.
uint64_t MarkAttended(LayerState* state);

}  // namespace oasiskv
