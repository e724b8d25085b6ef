#include "tests/gpu/score_rig.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>
#include <sstream>

#include "client/selection/element.h"
#include "client/selection/score.h"
#include "client/selection/summary.h"
#include "tests/support/narrow.h"

namespace oasiskv::gpu_test {
namespace {

constexpr uint32_t kBlockTokens = 16;
constexpr uint32_t kKeysOfBlock = 4;  // enough for a summary with a width

ElementType TypeOf(gpu::Element element) { return static_cast<ElementType>(element); }
gpu::Element ElementOf(gpu::QueryType type) {
  switch (type) {
    case gpu::QueryType::kBFloat16:
      return gpu::Element::kBFloat16;
    case gpu::QueryType::kFloat16:
      return gpu::Element::kFloat16;
    case gpu::QueryType::kFloat32:
      break;
  }
  return gpu::Element::kFloat32;
}

uint32_t Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// Values that are exact in every element type.
uint32_t ElementBits(gpu::Element element, float value) {
  return element == gpu::Element::kFloat32 ? Bits(value) : NarrowBits(TypeOf(element), value);
}

uint32_t SpecialBits(gpu::Element element, uint32_t which) {
  // 0, smallest, greatest, infinity, NaN; the others are 1.
  static constexpr std::array<std::array<uint32_t, 6>, 3> kOf = {{
      {0, 1, 0x7BFF, 0x7C00, 0x7E01, 0x3C00},
      {0, 1, 0x7F7F, 0x7F80, 0x7FC1, 0x3F80},
      {0, 1, 0x7F7FFFFF, 0x7F800000, 0x7FC00001, 0x3F800000},
  }};
  const uint32_t sign = element == gpu::Element::kFloat32 ? 0x80000000u : 0x8000u;
  return kOf[static_cast<uint32_t>(element) - 1][which % 6] | (which / 6 % 2 != 0 ? sign : 0);
}

}  // namespace

std::string Describe(const ScoreOptions& o) {
  std::ostringstream out;
  out << "element " << static_cast<int>(o.element) << ", summaries "
      << static_cast<int>(o.summaries) << ", queries " << static_cast<int>(o.query_type)
      << ", heads " << o.kv_heads << " x " << o.group << ", dim " << o.head_dim << ", K "
      << o.resident << ", blocks " << o.max_blocks << ", combine " << static_cast<int>(o.combine)
      << ", weight " << o.bound_weight << ", keys " << static_cast<int>(o.keys)
      << ", special queries " << o.special_queries << ", seed " << o.seed;
  return out.str();
}

std::vector<std::byte> MakeKeys(gpu::Element element, Keys kind, size_t count,
                                std::mt19937_64& random) {
  const uint32_t bytes = ElementBytes(TypeOf(element));
  std::vector<std::byte> out(count * bytes);
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits = 0;
    const auto r = static_cast<uint32_t>(random());
    switch (kind) {
      case Keys::kNumbers:
        bits = ElementBits(element, (static_cast<float>(r) / 4294967296.0f - 0.5f) * 6);
        break;
      case Keys::kFew:
        bits = ElementBits(element, static_cast<float>(static_cast<int>(r % 3) - 1));
        break;
      case Keys::kSpecial:  // mostly 1, so that not every block is NaN
        bits = SpecialBits(element, r % 16 == 0 ? (r >> 8) % 12 : 5);
        break;
      case Keys::kAnyBits:
        bits = r;
        break;
    }
    std::memcpy(&out[i * bytes], &bits, bytes);
  }
  return out;
}

ScoreRig::ScoreRig(const ScoreOptions& options) : options_(options), random_(options.seed) {
  const uint32_t element_bytes = ElementBytes(TypeOf(options.element));
  shape.layers = 1;
  shape.kv_heads = options.kv_heads;
  shape.group = options.group;
  shape.head_dim = options.head_dim;
  shape.block_tokens = kBlockTokens;
  shape.element = options.element;
  shape.key_bytes = options.head_dim * element_bytes;
  shape.summaries = options.summaries;
  shape.summary_bytes = 2 * (float8() ? options.head_dim : shape.key_bytes);
  shape.entry_bytes = 2 * kBlockTokens * shape.key_bytes;
  shape.resident = options.resident;
  shape.max_blocks = options.max_blocks;
  shape.slots = options.slots;
  shape.combine = options.combine;
  shape.near = static_cast<float>((1.0 + options.bound_weight) / 2);
  shape.far = static_cast<float>((1.0 - options.bound_weight) / 2);
  device_ = MakeLayer({.shape = shape, .max_rows = options.max_rows});
  mem = device_.memory;
  rows = device_.rows;
  MakeSummaries();
  MakeQueries();
  predicted = Array<int32_t>::Of(
      mem.predicted, size_t{options.slots} * options.kv_heads * options.resident, kUntouched);
  state = Array<gpu::SlotState>::Of(mem.state, options.slots, {.complete = options.max_blocks});
  row_slots = Array<int32_t>::Of(rows.slots, options.max_rows);
  row_count = Array<uint32_t>::Of(rows.count, 1);
  std::vector<int32_t> order(options.slots);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random_);
  order.resize(std::min(options.slots, options.max_rows));
  SetRows(order, static_cast<uint32_t>(order.size()));
}

void ScoreRig::MakeSummaries() {
  const size_t all = size_t{options_.slots} * options_.kv_heads * options_.max_blocks;
  summaries = Array<std::byte>::Of(mem.summaries, options_.slots * mem.summaries_slot_stride);
  std::vector<std::byte> of_block(2 * shape.key_bytes);
  for (size_t i = 0; i < all; ++i) {
    std::byte* const to = summaries.host.data() + ListAt(i / options_.max_blocks) +
                          i % options_.max_blocks * shape.summary_bytes;
    if (options_.keys == Keys::kAnyBits) {
      const auto bits = MakeKeys(shape.element, options_.keys, 2 * shape.head_dim, random_);
      std::memcpy(to, bits.data(), shape.summary_bytes);
      continue;
    }
    // A special number is rare enough that many blocks have none.
    const Keys kind =
        options_.keys == Keys::kSpecial && random_() % 3 != 0 ? Keys::kNumbers : options_.keys;
    const auto keys = MakeKeys(shape.element, kind, kKeysOfBlock * shape.head_dim, random_);
    SummariseKeys(TypeOf(shape.element), shape.head_dim, keys.data(), shape.key_bytes, kKeysOfBlock,
                  of_block.data());
    if (float8()) {
      SummaryToFloat8(TypeOf(shape.element), shape.head_dim, of_block.data(), to);
    } else {
      std::memcpy(to, of_block.data(), of_block.size());
    }
  }
  if (float8()) {
    for (std::byte code : summaries.host) {
      widened_.push_back(Float8ToFloat(static_cast<uint8_t>(code)));
    }
  }
  summaries.Upload();
}

void ScoreRig::MakeQueries() {
  const gpu::Element element = ElementOf(options_.query_type);
  const uint32_t bytes = ElementBytes(TypeOf(element));
  const size_t each = size_t{shape.kv_heads} * shape.group * shape.head_dim;
  row_stride_ = static_cast<int64_t>(each) + options_.row_gap;
  const Keys kind = options_.keys == Keys::kFew ? Keys::kFew : Keys::kNumbers;
  auto raw = MakeKeys(element, kind, row_stride_ * options_.max_rows, random_);
  if (options_.special_queries) {
    for (size_t i = 0; i < raw.size() / bytes; ++i) {
      if (random_() % 64 != 0) continue;
      const uint32_t special = SpecialBits(element, std::array{0u, 6u, 1u, 3u, 9u}[random_() % 5]);
      std::memcpy(&raw[i * bytes], &special, bytes);
    }
  }
  device_queries_ = Array<std::byte>(raw.size());
  device_queries_.host = raw;
  device_queries_.Upload();
  queries_.resize(each * options_.max_rows);
  for (size_t i = 0; i < queries_.size(); ++i) {
    queries_[i] = LoadElement(TypeOf(element), raw.data(), i / each * row_stride_ + i % each);
  }
}

void ScoreRig::SetBlocks(uint32_t slot, uint32_t complete, uint32_t local_tokens) {
  state.host[slot].complete = complete;
  state.host[slot].local_tokens = local_tokens;
  state.Upload();
}

void ScoreRig::SetRows(std::vector<int32_t> slots, uint32_t count) {
  std::copy(slots.begin(), slots.end(), row_slots.host.begin());
  row_slots.Upload();
  row_count.host[0] = count;
  row_count.Upload();
}

gpu::LaunchError ScoreRig::Score(const gpu::ScoreTuning& tuning, bool full_local) {
  return gpu::ScoreTopKTuned(shape, mem, rows, device_queries_.device(), options_.query_type,
                             row_stride_, tuning, nullptr, full_local);
}

void ScoreRig::ForgetPredicted() {
  std::fill(predicted.host.begin(), predicted.host.end(), kUntouched);
  predicted.Upload();
}

std::vector<int32_t> ScoreRig::Expected(bool full_local) const {
  std::vector<int32_t> out(predicted.host.size(), kUntouched);
  std::vector<float> scores(shape.max_blocks), scratch;
  std::vector<uint64_t> order;
  const uint32_t count = std::min(row_count.host[0], options_.max_rows);
  for (uint32_t row = 0; row < count; ++row) {
    const uint32_t slot = row_slots.host[row];
    const gpu::SlotState& s = state.host[slot];
    const uint32_t blocks = s.complete + (full_local && s.local_tokens == kBlockTokens ? 1 : 0);
    for (uint32_t h = 0; h < shape.kv_heads; ++h) {
      const size_t list = size_t{slot} * shape.kv_heads + h;
      ScoreInput in;
      const size_t at = ListAt(list);
      if (float8()) {
        in.summaries = reinterpret_cast<const std::byte*>(widened_.data() + at);
        in.block_stride = static_cast<int64_t>(shape.summary_bytes * sizeof(float));
        in.element_type = ElementType::kFloat32;
      } else {
        in.summaries = summaries.host.data() + at;
        in.block_stride = shape.summary_bytes;
        in.element_type = TypeOf(shape.element);
      }
      in.head_dim = shape.head_dim;
      in.blocks = blocks;
      in.queries =
          queries_.data() + (size_t{row} * shape.kv_heads + h) * shape.group * shape.head_dim;
      in.group = shape.group;
      in.combine = options_.combine;
      in.bound_weight = options_.bound_weight;
      ScoreBlocks(in, scores.data(), scratch);
      TopK(scores.data(), blocks, shape.resident, out.data() + list * shape.resident, order);
    }
  }
  return out;
}

}  // namespace oasiskv::gpu_test
