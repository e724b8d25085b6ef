// The shape of a model as the decode step sees it: what a model file says, and the sizes that
// follow.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "oasiskv/selection.h"

namespace oasiskv::bench::step {

// Thread contract: a plain value.
//
// Elements are BF16. Of one GPU: a tensor-parallel rank's file has that rank's heads and columns.
struct Model {
  std::string name;
  uint32_t layers = 0, hidden = 0, query_heads = 0, kv_heads = 0, head_dim = 0;
  // Of one expert where there are experts.
  uint32_t ffn = 0;
  uint32_t vocab = 0;
  // That this GPU holds; 0: a dense FFN.
  uint32_t experts = 0;
  // Of them, those that a token uses on average.
  uint32_t active_experts = 0;
  // MLA: how many elements at the beginning of the latent are the value; 0: not MLA.
  uint32_t latent_value_dim = 0;
  // Outputs of the projection before attention and inputs of the one after it; 0: what the heads
  // add up to.
  uint32_t qkv_columns = 0, output_rows = 0;
  // KV of the draft model.
  uint32_t draft_bytes_per_token = 0;

  static constexpr uint32_t kElementBytes = 2;
  static constexpr uint32_t kBlockTokens = 16;

  bool latent() const { return latent_value_dim != 0; }
  uint32_t group() const { return query_heads / kv_heads; }
  uint32_t value_dim() const { return latent() ? latent_value_dim : head_dim; }
  // Elements of one token's queries, of its attention output, of its K and V.
  uint32_t query_columns() const { return query_heads * head_dim; }
  uint32_t attention_columns() const { return query_heads * value_dim(); }
  uint32_t kv_columns() const { return kv_heads * head_dim * (latent() ? 1 : 2); }
  uint32_t entry_bytes() const {
    return kBlockTokens * head_dim * kElementBytes * (latent() ? 1 : 2);
  }
  uint32_t summary_bytes(SummaryType type) const {
    return 2 * head_dim * (type == SummaryType::kFloat8 ? 1 : kElementBytes);
  }
  uint64_t kv_bytes_per_token() const { return uint64_t{layers} * kv_columns() * kElementBytes; }
  // Weights of one layer; what one step of `rows` rows reads of them (not all experts are hit by
  // few rows); all weights with embedding and LM head.
  uint64_t layer_weight_bytes() const;
  uint64_t layer_weight_bytes_read(uint32_t rows) const;
  uint64_t weight_bytes() const;
  // Experts that `rows` rows hit, expected, and rows that each of them gets.
  uint32_t experts_hit(uint32_t rows) const;
  uint32_t rows_per_expert(uint32_t rows) const;
};

// INVALID_ARGUMENT naming `origin`, the field, what was found and what is allowed. Unknown fields
// are refused: a misspelt optional field would otherwise be taken for absent.
absl::StatusOr<Model> ParseModel(absl::string_view json, absl::string_view origin);
absl::StatusOr<Model> ReadModel(const std::string& path);

}  // namespace oasiskv::bench::step
