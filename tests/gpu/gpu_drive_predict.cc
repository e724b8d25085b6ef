// What the next step is predicted from: queries, or a ready top-K list.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "client/selection/select.h"
#include "tests/gpu/gpu_drive.h"

namespace oasiskv::gpu_test {

void Drive::Predicts(uint32_t l, const std::vector<RequestSlot>& rows) {
  if (case_.predict == Predict::kLists) return SubmitLists(l, rows);
  const uint64_t row_queries = uint64_t{options_.query_heads} * options_.geometry.head_dim;
  for (size_t r = 0; r < rows.size(); ++r) {
    Request& request = requests_[rows[r].value()];
    std::vector<std::vector<int32_t>> ranked;
    for (uint32_t h = 0; h < options_.geometry.kv_heads; ++h) {
      ranked.push_back(
          request.model->TopK(l, h, Candidates(request, l), inputs_->queries(l) + r * row_queries));
    }
    request.predicted[l] = Prediction(request, l, std::move(ranked));
  }
  ASSERT_STATUS_OK(cpu_->Submit(LayerIndex(l), rows, inputs_->queries(l)));
  ASSERT_STATUS_OK(gpu_->Submit(LayerIndex(l), inputs_->gpu_queries(l), inputs_->type(),
                                inputs_->gpu_row_stride(), stream_.get()));
}

void Drive::SubmitLists(uint32_t l, const std::vector<RequestSlot>& rows) {
  constexpr uint32_t kPlaces[] = {1, 3, 8, 13, kLongestList};  // K is 8
  const uint32_t k = kPlaces[rng_() % std::size(kPlaces)], heads = options_.geometry.kv_heads;
  std::vector<int32_t> for_cpu(rows.size() * heads * k);
  for (size_t r = 0; r < rows.size(); ++r) {
    Request& request = requests_[rows[r].value()];
    std::vector<std::vector<int32_t>> ranked(heads);
    for (uint32_t h = 0; h < heads; ++h) {
      const size_t at = (r * heads + h) * k;
      FillList(request, l, k, inputs_->lists(l) + at, for_cpu.data() + at);
      for (uint32_t i = 0; i < k && ranked[h].size() < options_.resident_blocks; ++i) {
        const int32_t block = inputs_->lists(l)[at + i];
        const bool candidate = block >= 0 && static_cast<uint32_t>(block) < Candidates(request, l);
        const bool again = std::find(ranked[h].begin(), ranked[h].end(), block) != ranked[h].end();
        if (candidate && !again) ranked[h].push_back(block);
      }
    }
    request.predicted[l] = Prediction(request, l, std::move(ranked));
  }
  ASSERT_STATUS_OK(cpu_->SubmitTopK(LayerIndex(l), rows, for_cpu.data(), k));
  ASSERT_STATUS_OK(gpu_->SubmitTopK(LayerIndex(l), inputs_->lists(l), k, stream_.get()));
}

void Drive::FillList(const Request& request, uint32_t l, uint32_t k, int32_t* gpu, int32_t* cpu) {
  const uint32_t candidates = Candidates(request, l);
  const bool full = request.next_token[l] % options_.geometry.block_tokens == 0;
  // Few numbers for many places, so that most are named again.
  const uint32_t first = static_cast<uint32_t>(rng_() % (candidates + 1));
  // Resolve would count an empty list's agreement on the CPU alone.
  const bool some = case_.mode == SelectionMode::kExact && candidates > 0;
  for (uint32_t i = 0; i < k; ++i) {
    int64_t block = first + rng_() % 12;
    switch (rng_() % 8) {
      case 0:
        block = -1;
        break;
      case 1:
        block = candidates + rng_() % 2;  // the block that fills, or the one after it
        break;
      case 2:
        block = rng_() % 2 == 0 ? INT32_MAX : -7;
        break;
      default:
        break;
    }
    if (some && i == 0) block = rng_() % candidates;
    gpu[i] = static_cast<int32_t>(block);
    // The cpu backend takes no block that is none; it does take the one that fills.
    const int64_t end = int64_t{candidates} + (full ? 0 : 1);
    cpu[i] = block >= 0 && block < end ? gpu[i] : -1;
  }
}

std::vector<int32_t> Drive::Prediction(const Request& request, uint32_t layer,
                                       std::vector<std::vector<int32_t>> ranked) const {
  const uint64_t tokens = request.next_token[layer];
  std::vector<int32_t> out;
  for (std::vector<int32_t>& list : ranked) {
    list.resize(options_.resident_blocks, -1);
    if (tokens > 0 && tokens % options_.geometry.block_tokens == 0) {
      IncludePromoted(list, static_cast<int32_t>(Candidates(request, layer) - 1));
    }
    out.insert(out.end(), list.begin(), list.end());
  }
  return out;
}

}  // namespace oasiskv::gpu_test
