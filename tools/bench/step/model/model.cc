#include "tools/bench/step/model/model.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::bench::step {
namespace {

struct Field {
  const char* name;
  uint32_t Model::*member;
  uint32_t min, max;
  bool required;
};

constexpr Field kFields[] = {
    {"layers", &Model::layers, 1, 1024, true},
    {"hidden", &Model::hidden, 64, 65536, true},
    {"query_heads", &Model::query_heads, 1, 1024, true},
    {"kv_heads", &Model::kv_heads, 1, 256, true},
    {"head_dim", &Model::head_dim, 64, 1024, true},
    {"ffn", &Model::ffn, 16, 1u << 20, true},
    {"vocab", &Model::vocab, 256, 1u << 21, true},
    {"experts", &Model::experts, 1, 4096, false},
    {"active_experts", &Model::active_experts, 1, 4096, false},
    {"latent_value_dim", &Model::latent_value_dim, 64, 1024, false},
    {"qkv_columns", &Model::qkv_columns, 64, 1u << 20, false},
    {"output_rows", &Model::output_rows, 64, 1u << 20, false},
    {"draft_bytes_per_token", &Model::draft_bytes_per_token, 0, 1u << 24, false},
};

absl::Status Refuse(absl::string_view origin, absl::string_view what) {
  return MakeError(ErrorCode::kInvalidArgument, absl::StrCat("model ", origin, ": ", what));
}

absl::Status CheckWhole(const Model& m, absl::string_view origin) {
  if (m.query_heads % m.kv_heads != 0) {
    return Refuse(origin, absl::StrCat("query_heads ", m.query_heads,
                                       " is not a multiple of kv_heads ", m.kv_heads));
  }
  for (const auto& [name, value] : {std::pair{"hidden", m.hidden},
                                    {"head_dim", m.head_dim},
                                    {"ffn", m.ffn},
                                    {"vocab", m.vocab},
                                    {"latent_value_dim", m.latent_value_dim},
                                    {"qkv_columns", m.qkv_columns},
                                    {"output_rows", m.output_rows}}) {
    if (value % 8 != 0) {
      return Refuse(origin, absl::StrCat(name, " ", value,
                                         " is not a multiple of 8, which 16-byte loads need"));
    }
  }
  if ((m.experts == 0) != (m.active_experts == 0)) {
    return Refuse(origin, "experts and active_experts come together");
  }
  if (m.latent() && (m.kv_heads != 1 || m.latent_value_dim > m.head_dim)) {
    return Refuse(origin, absl::StrCat("latent_value_dim ", m.latent_value_dim,
                                       " needs kv_heads 1 and a head_dim that is not smaller"));
  }
  if (m.qkv_columns < m.kv_columns()) {
    return Refuse(origin, absl::StrCat("qkv_columns ", m.qkv_columns,
                                       " is less than the K and V in them, ", m.kv_columns()));
  }
  if (m.output_rows > m.attention_columns()) {
    return Refuse(origin, absl::StrCat("output_rows ", m.output_rows,
                                       " is more than attention gives, ", m.attention_columns()));
  }
  return absl::OkStatus();
}

}  // namespace

uint32_t Model::experts_hit(uint32_t rows) const {
  const double share = std::min(1.0, static_cast<double>(active_experts) / experts);
  const double hit = experts * (1 - std::pow(1 - share, rows));
  return std::clamp(static_cast<uint32_t>(std::lround(hit)), 1u, experts);
}

uint32_t Model::rows_per_expert(uint32_t rows) const {
  const uint64_t assigned = uint64_t{rows} * active_experts;
  const uint32_t hit = experts_hit(rows);
  return static_cast<uint32_t>((assigned + hit - 1) / hit);
}

uint64_t Model::layer_weight_bytes() const {
  const uint64_t attention = uint64_t{hidden} * (qkv_columns + output_rows);
  const uint64_t one = uint64_t{3} * hidden * ffn;
  return (attention + one * std::max(1u, experts)) * kElementBytes;
}

uint64_t Model::layer_weight_bytes_read(uint32_t rows) const {
  const uint64_t attention = uint64_t{hidden} * (qkv_columns + output_rows);
  const uint64_t one = uint64_t{3} * hidden * ffn;
  return (attention + one * (experts == 0 ? 1 : experts_hit(rows))) * kElementBytes;
}

uint64_t Model::weight_bytes() const {
  return layers * layer_weight_bytes() + uint64_t{2} * vocab * hidden * kElementBytes;
}

absl::StatusOr<Model> ParseModel(absl::string_view json, absl::string_view origin) {
  const nlohmann::json j =
      nlohmann::json::parse(json.begin(), json.end(), nullptr, /*allow_exceptions=*/false);
  if (!j.is_object()) return Refuse(origin, "is not a JSON object");
  Model model;
  std::set<std::string> known = {"name"};
  for (const Field& f : kFields) {
    known.insert(f.name);
    const auto at = j.find(f.name);
    if (at == j.end()) {
      if (f.required) return Refuse(origin, absl::StrCat("has no field '", f.name, "'"));
      continue;
    }
    if (!at->is_number_unsigned() || at->get<uint64_t>() < f.min || at->get<uint64_t>() > f.max) {
      return Refuse(origin, absl::StrCat("field '", f.name, "' is ", at->dump(), ", not ", f.min,
                                         " to ", f.max));
    }
    model.*f.member = at->get<uint32_t>();
  }
  for (const auto& [key, value] : j.items()) {
    if (!known.contains(key)) return Refuse(origin, absl::StrCat("unknown field '", key, "'"));
  }
  const auto name = j.find("name");
  if (name != j.end() && !name->is_string()) return Refuse(origin, "field 'name' is not a string");
  model.name = name != j.end() ? name->get<std::string>() : std::string(origin);
  if (model.qkv_columns == 0) model.qkv_columns = model.query_columns() + model.kv_columns();
  if (model.output_rows == 0) model.output_rows = model.attention_columns();
  OASISKV_RETURN_IF_ERROR(CheckWhole(model, origin));
  return model;
}

absl::StatusOr<Model> ReadModel(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrCat("--model: cannot read '", path,
                                  "'; tools/bench/step/models has the ones that are known"));
  }
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return ParseModel(text, path);
}

}  // namespace oasiskv::bench::step
