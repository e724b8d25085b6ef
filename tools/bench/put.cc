// put: rate of whole sequences (open, write, commit, seal, release), and what it costs to clear
// memory between tenants (--clear_frames of the daemon).
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"
#include "tools/bench/operation.h"
#include "tools/bench/operations.h"
#include "tools/bench/report.h"
#include "tools/bench/testbed.h"

ABSL_FLAG(uint32_t, put_blocks, 128, "Blocks of each sequence, of 0.5 MiB.");
ABSL_FLAG(uint32_t, put_rounds, 9, "Rounds; in each, every setting has its turn.");
ABSL_FLAG(uint32_t, puts, 16, "Sequences that a setting puts in a round.");

namespace oasiskv::bench {
namespace {

struct Setting {
  const char* clear;
  uint32_t tenants;  // that put in turn
};
// Side by side what is compared.
constexpr Setting kSettings[] = {{"never", 1}, {"tenant", 1}, {"tenant", 2}, {"always", 1}};

Geometry HalfMebibyteFrames() {
  Geometry g;
  g.layers = 8;
  g.kv_heads = 8;
  g.total_kv_heads = 8;
  g.head_dim = 128;
  g.element_type = ElementType::kBFloat16;
  return g;
}

// Thread contract: used by one thread. Puts sequences to one daemon.
class Putter {
 public:
  Putter(Testbed bed, const Setting& setting, uint32_t blocks)
      : bed_(std::move(bed)), setting_(setting), blocks_(blocks) {
    const uint64_t tokens = uint64_t{blocks} * geometry_.block_tokens;
    kv_.assign(tokens * geometry_.kv_heads * geometry_.key_bytes(), std::byte{0x3c});
  }

  // GB/s of entries, and the times of the opens.
  absl::StatusOr<double> Round(uint32_t puts) {
    const auto start = std::chrono::steady_clock::now();
    for (uint32_t i = 0; i < puts; ++i) OASISKV_RETURN_IF_ERROR(Put());
    const double bytes =
        double{1} * puts * blocks_ * geometry_.layers * geometry_.layer_entries_bytes();
    return bytes / Seconds(std::chrono::steady_clock::now() - start) / 1e9;
  }
  std::vector<double>& open_us() { return open_us_; }
  std::string fabric() const { return bed_.fabric(); }

 private:
  absl::Status Put() {
    ProducerSpec spec;
    spec.name = "put";
    spec.identity = {"bench", "1", absl::StrCat("tenant ", next_++ % setting_.tenants)};
    spec.geometry = geometry_;
    spec.blocks = blocks_;
    const auto start = std::chrono::steady_clock::now();
    OASISKV_ASSIGN_OR_RETURN(Producer producer, bed_.client().Open(spec));
    open_us_.push_back(Seconds(std::chrono::steady_clock::now() - start) * 1e6);
    const KvView view{kv_.data(), int64_t{geometry_.kv_heads} * geometry_.key_bytes(),
                      geometry_.key_bytes()};
    const uint32_t tokens = blocks_ * geometry_.block_tokens;
    for (uint32_t l = 0; l < geometry_.layers; ++l) {
      OASISKV_RETURN_IF_ERROR(producer.WriteTokens(LayerIndex(l), 0, tokens, view, view));
    }
    SealSpec seal;
    seal.token_count = tokens;
    OASISKV_RETURN_IF_ERROR(producer.Seal(seal));
    return bed_.client().ReleaseSequences({spec.name}, spec.identity).status();
  }

  Testbed bed_;
  const Setting setting_;
  const uint32_t blocks_;
  const Geometry geometry_ = HalfMebibyteFrames();
  std::vector<std::byte> kv_;  // of one layer, keys and values alike
  uint64_t next_ = 0;
  std::vector<double> open_us_;
};

}  // namespace

absl::Status RunPut() {
  const uint32_t blocks = std::max(1u, absl::GetFlag(FLAGS_put_blocks));
  const uint64_t sequence = uint64_t{blocks} * HalfMebibyteFrames().frame_stride();
  OASISKV_ASSIGN_OR_RETURN(TestbedOptions options, TestbedOptions::FromFlags(3 * sequence));
  if (!options.address.empty()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "put starts a daemon for each setting; leave --address out");
  }
  std::vector<std::unique_ptr<Putter>> putters;
  for (const Setting& setting : kSettings) {
    options.clear_frames = setting.clear;
    OASISKV_ASSIGN_OR_RETURN(Testbed bed, Testbed::Create(options));
    putters.push_back(std::make_unique<Putter>(std::move(bed), setting, blocks));
    // Warms up, and leaves no memory that was never used.
    OASISKV_RETURN_IF_ERROR(putters.back()->Round(4).status());
    putters.back()->open_us().clear();
  }
  std::vector<std::vector<double>> rates(putters.size());
  for (uint32_t round = 0; round < absl::GetFlag(FLAGS_put_rounds); ++round) {
    for (size_t i = 0; i < putters.size(); ++i) {
      OASISKV_ASSIGN_OR_RETURN(const double rate, putters[i]->Round(absl::GetFlag(FLAGS_puts)));
      rates[i].push_back(rate);
    }
  }
  std::vector<PutRow> rows;
  for (size_t i = 0; i < putters.size(); ++i) {
    PutRow row;
    row.fabric = putters[i]->fabric();
    row.clear_frames = kSettings[i].clear;
    row.tenants = kSettings[i].tenants;
    row.sequence_bytes = sequence;
    row.gbps = SpreadOf(rates[i]);
    row.open_p50_us = Quantile(putters[i]->open_us(), 0.5);
    row.open_p99_us = Quantile(putters[i]->open_us(), 0.99);
    rows.push_back(row);
  }
  Print(rows, FormatFromFlag());
  return absl::OkStatus();
}

}  // namespace oasiskv::bench
