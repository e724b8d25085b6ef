#include "tools/bench/step/budget.h"

#include <algorithm>

#include "tools/bench/step/foreground.h"

namespace oasiskv::bench::step {
namespace {

uint64_t Blocks(uint32_t context) {
  return (context + Model::kBlockTokens - 1) / Model::kBlockTokens;
}
uint64_t LayerHeads(const Model& m) { return uint64_t{m.layers} * m.kv_heads; }

}  // namespace

uint64_t DenseRequestBytes(const Model& model, uint32_t context) {
  return Blocks(context) * model.entry_bytes() * LayerHeads(model);
}

uint64_t SparseRequestBytes(const Model& model, uint32_t context, uint32_t resident,
                            SummaryType summaries) {
  // Map, stamps and the predicted list: 4 + 8 + 4 bytes a page.
  const uint64_t of_head = (resident + 1) * uint64_t{model.entry_bytes()} +
                           Blocks(context) * model.summary_bytes(summaries) +
                           resident * uint64_t{16};
  return of_head * LayerHeads(model) + uint64_t{context} * model.draft_bytes_per_token;
}

uint32_t LargestBatch(const Model& model, uint64_t hbm, uint64_t request_bytes,
                      uint32_t query_rows) {
  if (hbm <= model.weight_bytes()) return 0;
  const uint64_t room = hbm - model.weight_bytes();
  auto batch = static_cast<uint32_t>(std::min<uint64_t>(room / request_bytes, 65536));
  while (batch > 0 &&
         batch * request_bytes + Foreground::WorkspaceBytes(model, batch, query_rows) > room) {
    --batch;
  }
  return batch;
}

uint32_t WholeTiles(uint32_t largest, uint32_t query_rows) {
  constexpr uint32_t kTileRows = 128;
  const uint32_t whole = largest * query_rows / kTileRows * kTileRows / query_rows;
  return largest - whole <= largest / 16 ? whole : largest;
}

double DenseStepBytes(const Model& model, uint32_t context, uint32_t batch,
                      uint64_t weight_bytes_read) {
  return static_cast<double>(weight_bytes_read + batch * DenseRequestBytes(model, context));
}

double SparseStepBytes(const Model& model, uint32_t context, uint32_t resident,
                       SummaryType summaries, uint32_t batch, uint64_t weight_bytes_read,
                       double link_bytes) {
  const uint64_t of_head = (resident + 1) * uint64_t{model.entry_bytes()} +
                           Blocks(context) * model.summary_bytes(summaries);
  const uint64_t of_request =
      of_head * LayerHeads(model) + uint64_t{context} * model.draft_bytes_per_token;
  return static_cast<double>(weight_bytes_read + batch * of_request) + link_bytes;
}

}  // namespace oasiskv::bench::step
