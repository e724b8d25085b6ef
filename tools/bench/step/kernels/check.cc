#include "tools/bench/step/kernels/check.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/working_set/cuda/host/launch.h"
#include "common/cuda/status.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"
#include "tools/bench/rig/device.h"
#include "tools/bench/step/kernels/attention.h"

namespace oasiskv::bench::step {
namespace {

struct Case {
  const char* name;
  uint32_t rows, kv_heads, group, query_rows, head_dim, value_dim;
  uint32_t resident;  // 0: dense
  uint32_t blocks;    // dense: pages of a row
  uint32_t splits;
  bool token_major;  // NHD: heads of a token lie together, K and V apart
};

constexpr Case kCases[] = {
    {"sparse, group 4, token and draft", 5, 2, 4, 2, 128, 128, 128, 0, 1, false},
    {"sparse, three splits", 5, 2, 4, 2, 128, 128, 128, 0, 3, false},
    {"sparse, group 8", 3, 1, 8, 2, 128, 128, 40, 0, 2, false},
    {"sparse, group 3", 3, 2, 3, 2, 128, 128, 33, 0, 2, false},
    {"sparse, token-major pages", 3, 2, 4, 2, 128, 128, 20, 0, 2, true},
    {"sparse, one page", 4, 2, 4, 2, 128, 128, 1, 0, 1, false},
    {"dense, group 4", 3, 2, 4, 1, 128, 128, 0, 130, 1, false},
    {"dense, seven splits", 3, 2, 4, 1, 128, 128, 0, 130, 7, false},
    {"dense, group 16", 2, 1, 16, 1, 128, 128, 0, 37, 2, false},
    {"latent, sparse", 3, 1, 16, 2, 576, 512, 16, 0, 1, false},
    {"latent, dense", 2, 1, 16, 1, 576, 512, 0, 21, 1, false},
};

uint16_t ToBf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
double FromBf16(uint16_t x) {
  const uint32_t bits = uint32_t{x} << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

// A case with its data on both sides.
class Check {
 public:
  explicit Check(const Case& c) : c_(c), random_(1234) {}
  absl::Status Run();

 private:
  void Make();
  std::vector<double> Reference() const;
  absl::Status Compare(const char* kernel, bool generic, const std::vector<double>& wanted);

  bool latent() const { return c_.value_dim != c_.head_dim; }
  uint32_t pages() const { return c_.resident > 0 ? c_.resident + 1 : c_.blocks; }
  int32_t Physical(uint32_t row, uint32_t page) const {
    return table_[(c_.resident > 0 ? static_cast<uint32_t>(slots_[row]) : row) * pages() + page];
  }

  const Case c_;
  std::mt19937 random_;
  uint32_t slots_count_ = 0;
  int64_t page_stride_ = 0, head_stride_ = 0, token_stride_ = 0, v_offset_ = 0;
  std::vector<uint16_t> kv_, queries_;
  std::vector<int32_t> table_, map_, slots_;
  std::vector<gpu::SlotState> books_;
};

void Check::Make() {
  slots_count_ = c_.resident > 0 ? c_.rows + 2 : c_.rows;
  const uint32_t physical = slots_count_ * pages();
  const int64_t key = c_.head_dim * 2;
  const int64_t half = int64_t{physical} * 16 * c_.kv_heads * key;
  if (c_.token_major) {
    token_stride_ = key * c_.kv_heads;
    head_stride_ = key;
    page_stride_ = 16 * token_stride_;
    v_offset_ = half;
  } else {
    token_stride_ = key;
    head_stride_ = 16 * key * (latent() ? 1 : 2);
    page_stride_ = head_stride_ * c_.kv_heads;
    v_offset_ = latent() ? 0 : 16 * key;
  }
  std::normal_distribution<float> normal;
  kv_.resize(static_cast<size_t>(half * (latent() ? 1 : 2) / 2));
  for (uint16_t& x : kv_) x = ToBf16(normal(random_));
  queries_.resize(uint64_t{c_.query_rows} * c_.rows * c_.kv_heads * c_.group * c_.head_dim);
  // Larger queries make the softmax peaked, so that a wrong maximum shows.
  for (uint16_t& x : queries_) x = ToBf16(2 * normal(random_));
  table_.resize(physical);
  std::iota(table_.begin(), table_.end(), 0);
  std::shuffle(table_.begin(), table_.end(), random_);
  for (uint32_t r = 0; r < c_.rows; ++r)
    slots_.push_back(static_cast<int32_t>(slots_count_ - 1 - r));
  for (uint32_t s = 0; s < slots_count_; ++s) {
    books_.push_back({.clock = 0,
                      .complete = 5,
                      .local_tokens = (s * 5 + 1) % 17,
                      .promoted = -1,
                      .pending = 0});
  }
  map_.resize(uint64_t{slots_count_} * c_.kv_heads * c_.resident);
  for (size_t i = 0; i < map_.size(); ++i)
    map_[i] = random_() % 4 == 0 ? -1 : static_cast<int32_t>(i);
}

std::vector<double> Check::Reference() const {
  std::vector<double> out(uint64_t{c_.query_rows} * c_.rows * c_.kv_heads * c_.group *
                          c_.value_dim);
  const double scale = 1.0 / std::sqrt(static_cast<double>(c_.head_dim));
  for (uint32_t qr = 0; qr < c_.query_rows; ++qr) {
    for (uint32_t row = 0; row < c_.rows; ++row) {
      for (uint32_t qh = 0; qh < c_.kv_heads * c_.group; ++qh) {
        const uint32_t head = qh / c_.group;
        const uint64_t vector = (uint64_t{qr} * c_.rows + row) * c_.kv_heads * c_.group + qh;
        std::vector<double> scores;
        std::vector<const uint16_t*> values;
        for (uint32_t p = 0; p < pages(); ++p) {
          uint32_t tokens = 16;
          if (c_.resident > 0) {
            const auto slot = static_cast<uint32_t>(slots_[row]);
            if (p == c_.resident) {
              tokens = books_[slot].local_tokens;
            } else if (map_[(uint64_t{slot} * c_.kv_heads + head) * c_.resident + p] < 0) {
              continue;
            }
          }
          for (uint32_t t = 0; t < tokens; ++t) {
            const int64_t at =
                Physical(row, p) * page_stride_ + head * head_stride_ + t * token_stride_;
            const uint16_t* k = &kv_[static_cast<size_t>(at / 2)];
            double dot = 0;
            for (uint32_t d = 0; d < c_.head_dim; ++d) {
              dot += FromBf16(queries_[vector * c_.head_dim + d]) * FromBf16(k[d]);
            }
            scores.push_back(dot * scale);
            values.push_back(&kv_[static_cast<size_t>((at + v_offset_) / 2)]);
          }
        }
        double max = -INFINITY, sum = 0;
        for (const double s : scores) max = std::max(max, s);
        for (size_t i = 0; i < scores.size(); ++i) {
          const double e = std::exp(scores[i] - max);
          sum += e;
          for (uint32_t d = 0; d < c_.value_dim; ++d) {
            out[vector * c_.value_dim + d] += e * FromBf16(values[i][d]);
          }
        }
        for (uint32_t d = 0; d < c_.value_dim && sum > 0; ++d)
          out[vector * c_.value_dim + d] /= sum;
      }
    }
  }
  return out;
}

absl::Status Check::Compare(const char* kernel, bool generic, const std::vector<double>& wanted) {
  AttentionShape shape{.max_rows = c_.rows,
                       .kv_heads = c_.kv_heads,
                       .group = c_.group,
                       .query_rows = c_.query_rows,
                       .head_dim = c_.head_dim,
                       .value_dim = c_.value_dim,
                       .splits = c_.splits,
                       .scale = 1.0f / std::sqrt(static_cast<float>(c_.head_dim))};
  OASISKV_ASSIGN_OR_RETURN(const auto kv, DeviceArray<uint16_t>::Of(kv_));
  OASISKV_ASSIGN_OR_RETURN(const auto queries, DeviceArray<uint16_t>::Of(queries_));
  OASISKV_ASSIGN_OR_RETURN(const auto table, DeviceArray<int32_t>::Of(table_));
  OASISKV_ASSIGN_OR_RETURN(const auto map, DeviceArray<int32_t>::Of(map_));
  OASISKV_ASSIGN_OR_RETURN(const auto slots, DeviceArray<int32_t>::Of(slots_));
  OASISKV_ASSIGN_OR_RETURN(const auto books, DeviceArray<gpu::SlotState>::Of(books_));
  OASISKV_ASSIGN_OR_RETURN(const auto scratch,
                           DeviceArray<std::byte>::Zeroed(AttentionScratchBytes(shape)));
  OASISKV_ASSIGN_OR_RETURN(const auto out, DeviceArray<uint16_t>::Zeroed(wanted.size()));
  const auto* const k = reinterpret_cast<const std::byte*>(kv.data());
  const PageLayout layout{k, k + v_offset_, page_stride_, head_stride_, token_stride_};
  PageSet set;
  set.table = table.data();
  if (c_.resident > 0) {
    set.map = map.data();
    set.state = books.data();
    set.slots = slots.data();
    set.resident = c_.resident;
  } else {
    set.blocks = c_.blocks;
  }
  std::vector<uint16_t> first, got;
  for (int turn = 0; turn < 2; ++turn) {  // the second finds the tickets as the first left them
    OASISKV_CUDA_RETURN(cudaMemset(out.data(), 0xff, wanted.size() * 2));  // NaN
    const LaunchError error =
        generic ? AttendGeneric(shape, layout, set, queries.data(), out.data(), nullptr)
                : Attend(shape, layout, set, queries.data(), out.data(), scratch.data(), nullptr);
    OASISKV_RETURN_IF_ERROR(Launched("attention", error));
    OASISKV_ASSIGN_OR_RETURN(got, Download(out.data(), wanted.size()));
    if (turn == 0) first = got;
  }
  double off = 0, all = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const double d = FromBf16(got[i]) - wanted[i];
    off += d * d;
    all += wanted[i] * wanted[i];
  }
  const double relative = std::sqrt(off / all);
  const bool right = relative < 6e-3 && got == first;  // a NaN is not below
  std::printf("attention %-34s %-12s error %.2e %s\n", c_.name, kernel, relative,
              right          ? "right"
              : got == first ? "WRONG"
                             : "NOT REPEATABLE");
  if (right) return absl::OkStatus();
  return MakeError(ErrorCode::kInternal,
                   absl::StrFormat("attention, case '%s', %s kernel: relative error %.2e", c_.name,
                                   kernel, relative));
}

absl::Status Check::Run() {
  Make();
  const std::vector<double> wanted = Reference();
  absl::Status status;
  if (c_.head_dim == 128) status.Update(Compare("tensor core", false, wanted));
  status.Update(Compare("generic", true, wanted));
  return status;
}

}  // namespace

absl::Status CheckAttention() {
  absl::Status status;
  for (const Case& c : kCases) status.Update(Check(c).Run());
  return status;
}

}  // namespace oasiskv::bench::step
