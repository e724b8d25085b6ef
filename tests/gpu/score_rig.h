// One layer's summaries and queries in GPU memory, and what the cpu backend makes of the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "client/working_set/cuda/kernels/kernels.h"
#include "client/working_set/cuda/kernels/score_tuning.h"
#include "oasiskv/selection.h"
#include "tests/gpu/transfer_rig.h"

namespace oasiskv::gpu_test {

// What keys are made of.
enum class Keys {
  kNumbers,  // random numbers
  kFew,      // small whole numbers: ties in plenty
  kSpecial,  // zeros of both signs, infinities, NaNs, the smallest and the greatest numbers
  kAnyBits,  // summaries of any bits whatever, minima above maxima among them
};

struct ScoreOptions {
  gpu::Element element = gpu::Element::kBFloat16;
  SummaryType summaries = SummaryType::kAsKeys;
  gpu::QueryType query_type = gpu::QueryType::kFloat32;
  uint32_t kv_heads = 2, group = 4, head_dim = 128;
  uint32_t resident = 32, max_blocks = 100;
  uint32_t slots = 4, max_rows = 4;
  GroupCombine combine = GroupCombine::kMax;
  double bound_weight = 1.0;
  Keys keys = Keys::kNumbers;
  bool special_queries = false;  // zeros and infinities among them
  uint32_t row_gap = 0;          // elements between the queries of two rows
  uint64_t seed = 1;
};
std::string Describe(const ScoreOptions& options);

inline constexpr int32_t kUntouched = -77;

// Thread contract: one thread. All slots begin with max_blocks complete blocks and an empty local
// one; every slot is a row, in a random order.
class ScoreRig {
 public:
  explicit ScoreRig(const ScoreOptions& options);

  void SetBlocks(uint32_t slot, uint32_t complete, uint32_t local_tokens);
  void SetRows(std::vector<int32_t> slots, uint32_t count);
  gpu::LaunchError Score(const gpu::ScoreTuning& tuning = {}, bool full_local = true);

  // mem.predicted now, and what the cpu backend gives for the active rows, kUntouched elsewhere.
  std::vector<int32_t> Predicted() const { return predicted.Download(); }
  std::vector<int32_t> Expected(bool full_local = true) const;
  void ForgetPredicted();

  gpu::Shape shape;
  gpu::LayerMemory mem;
  gpu::Rows rows;
  Array<std::byte> summaries;
  Array<int32_t> predicted;
  Array<gpu::SlotState> state;
  Array<int32_t> row_slots;
  Array<uint32_t> row_count;

 private:
  // Of the summaries of one list of blocks in the pool.
  size_t ListAt(size_t list) const {
    return list / shape.kv_heads * mem.summaries_slot_stride +
           list % shape.kv_heads * shape.max_blocks * shape.summary_bytes;
  }
  void MakeSummaries();
  void MakeQueries();

  bool float8() const { return options_.summaries == SummaryType::kFloat8; }

  const ScoreOptions options_;
  bench::DeviceLayer device_;
  std::mt19937_64 random_;
  std::vector<float> widened_;  // of summaries in 8 bits: their values
  std::vector<float> queries_;  // [row][kv_heads * group][head_dim], exact
  Array<std::byte> device_queries_;
  int64_t row_stride_;
};

// `count` elements, as bytes.
std::vector<std::byte> MakeKeys(gpu::Element element, Keys kind, size_t count,
                                std::mt19937_64& random);

}  // namespace oasiskv::gpu_test
