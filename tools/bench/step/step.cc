// step: a decode step on GPUs, with the working set in HBM against the whole KV in HBM, under the
// same memory limit. See README.md for what is modelled and what is not.
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "tools/bench/gpu/flags.h"
#include "tools/bench/gpu/operations.h"
#include "tools/bench/step/kernels/check.h"
#include "tools/bench/step/run.h"
#include "tools/bench/step/step_report.h"

ABSL_FLAG(std::string, model, "tools/bench/step/models/qwen3-8b.json",
          "Model file; there are some in tools/bench/step/models.");
ABSL_FLAG(uint32_t, context, 16384, "Tokens of a request; a multiple of 16.");
ABSL_FLAG(std::string, hbm, "80GiB", "HBM that weights and requests of one GPU may take.");
ABSL_FLAG(std::string, host_bytes, "64GiB",
          "Pinned host memory for KV, all GPUs together; requests share what it holds.");
ABSL_FLAG(std::vector<std::string>, ratios, std::vector<std::string>({"0.05"}),
          "Fetch ratios of the sparse side.");
ABSL_FLAG(std::vector<std::string>, spares, std::vector<std::string>({"0"}),
          "Pages of a head beyond K, which keep what was ranked last.");
ABSL_FLAG(std::vector<std::string>, batches, {},
          "Batches of both sides. Empty: of each side the largest that --hbm holds.");
ABSL_FLAG(double, churn, 17, "Blocks of the true top-K that change per head and step.");
ABSL_FLAG(uint32_t, rounds, 5, "Rounds; figures are medians over them.");
ABSL_FLAG(uint32_t, steps, 20, "Steps of a round.");
ABSL_FLAG(uint32_t, warmup, 60,
          "Steps before the rounds, until the residents change no more than in use.");
ABSL_FLAG(uint32_t, gather_ctas, 32, "CTAs of the gather kernel.");
ABSL_FLAG(uint32_t, gather_threads, 128,
          "Threads of one CTA. A CTA of 1024 needs a multiprocessor to itself.");
ABSL_FLAG(uint32_t, gather_loads, 4, "16-byte loads in flight of a thread: 4 or 8.");
ABSL_FLAG(uint32_t, predict_processors, 0,
          "Multiprocessors that only scores use; the step uses those that are left by scores and "
          "transfers, and submits after attention. 0: all work shares all of them.");
ABSL_FLAG(bool, predict_behind, false,
          "Give the score kernel a lower priority than the step's own kernels.");
ABSL_FLAG(
    bool, last_layer_first, true,
    "Predict the last layer at the beginning of the next step, so that the link is busy there.");
ABSL_FLAG(uint32_t, devices, 1, "GPUs; each runs the same.");
ABSL_FLAG(std::string, sides, "both", "both, dense or sparse.");
ABSL_FLAG(bool, eager, false, "Launch kernel by kernel instead of one graph per step.");
ABSL_FLAG(bool, check, false, "Compare the attention kernels with a reference, and end.");
ABSL_FLAG(bool, json, false, "Print one JSON object per line instead of tables.");

namespace oasiskv::bench::step {
namespace {

absl::StatusOr<uint64_t> Bytes(const std::string& text, absl::string_view flag) {
  absl::string_view number = text;
  double unit = 1;
  for (const auto& [suffix, bytes] :
       {std::pair{"GiB", 0x1p30}, {"MiB", 0x1p20}, {"GB", 1e9}, {"MB", 1e6}}) {
    if (absl::ConsumeSuffix(&number, suffix)) {
      unit = bytes;
      break;
    }
  }
  double value = 0;
  if (!absl::SimpleAtod(number, &value) || !(value > 0) || value * unit > 0x1p50) {
    return Refuse(absl::StrCat("--", flag, ": '", text, "' is not a size; write it like 80GiB"));
  }
  return static_cast<uint64_t>(value * unit);
}

absl::StatusOr<RunOptions> OptionsFromFlags() {
  RunOptions o;
  OASISKV_ASSIGN_OR_RETURN(o.model, ReadModel(absl::GetFlag(FLAGS_model)));
  OASISKV_ASSIGN_OR_RETURN(o.hbm, Bytes(absl::GetFlag(FLAGS_hbm), "hbm"));
  OASISKV_ASSIGN_OR_RETURN(o.host_bytes, Bytes(absl::GetFlag(FLAGS_host_bytes), "host_bytes"));
  o.context = absl::GetFlag(FLAGS_context);
  o.resident = absl::GetFlag(FLAGS_resident);
  if (o.context == 0 || o.context % Model::kBlockTokens != 0) {
    return Refuse(absl::StrCat("--context=", o.context, " is not a multiple of 16"));
  }
  if (o.resident == 0 || o.resident * Model::kBlockTokens > o.context) {
    return Refuse(absl::StrCat("--resident=", o.resident, ": --context=", o.context, " has ",
                               o.context / Model::kBlockTokens, " blocks"));
  }
  for (const std::string& text : absl::GetFlag(FLAGS_ratios)) {
    double ratio = 0;
    if (!absl::SimpleAtod(text, &ratio) || !(ratio >= 0) || ratio > 1) {
      return Refuse(absl::StrCat("--ratios: '", text, "' is not between 0 and 1"));
    }
    o.ratios.push_back(ratio);
  }
  OASISKV_ASSIGN_OR_RETURN(o.batches, Numbers<uint32_t>(absl::GetFlag(FLAGS_batches), "batches"));
  for (const std::string& text : absl::GetFlag(FLAGS_spares)) {
    uint32_t spare = 0;
    if (!absl::SimpleAtoi(text, &spare) || spare > o.context / Model::kBlockTokens - o.resident) {
      return Refuse(absl::StrCat("--spares: '", text, "' is not a whole number up to ",
                                 o.context / Model::kBlockTokens - o.resident,
                                 ", the blocks beyond --resident"));
    }
    o.spares.push_back(spare);
  }
  OASISKV_ASSIGN_OR_RETURN(o.summaries, SummariesFromFlag());
  o.churn = absl::GetFlag(FLAGS_churn);
  if (!(o.churn > 0) || o.churn >= o.resident) {
    return Refuse(
        absl::StrCat("--churn=", o.churn, " is not between 0 and --resident=", o.resident));
  }
  o.rounds = absl::GetFlag(FLAGS_rounds);
  o.steps = absl::GetFlag(FLAGS_steps);
  o.warmup = absl::GetFlag(FLAGS_warmup);
  o.grid = {absl::GetFlag(FLAGS_gather_ctas), absl::GetFlag(FLAGS_gather_threads),
            absl::GetFlag(FLAGS_gather_loads)};
  if (o.grid.loads != 4 && o.grid.loads != 8) {
    return Refuse(absl::StrCat("--gather_loads=", o.grid.loads, " is neither 4 nor 8"));
  }
  o.devices = absl::GetFlag(FLAGS_devices);
  if (o.rounds == 0 || o.steps == 0 || o.devices == 0 || o.grid.ctas == 0) {
    return Refuse("--rounds, --steps, --devices and --gather_ctas must be above 0");
  }
  if (o.grid.threads == 0 || o.grid.threads % 32 != 0 || o.grid.threads > 1024) {
    return Refuse(
        absl::StrCat("--gather_threads=", o.grid.threads, " is not a multiple of 32 up to 1024"));
  }
  const std::string sides = absl::GetFlag(FLAGS_sides);
  if (sides != "both" && sides != "dense" && sides != "sparse") {
    return Refuse(absl::StrCat("--sides=", sides, " is none of both, dense, sparse"));
  }
  o.dense = sides != "sparse";
  o.sparse = sides != "dense";
  o.eager = absl::GetFlag(FLAGS_eager);
  o.predict_behind = absl::GetFlag(FLAGS_predict_behind);
  o.predict_processors = absl::GetFlag(FLAGS_predict_processors);
  o.last_layer_first = absl::GetFlag(FLAGS_last_layer_first);
  return o;
}

}  // namespace
}  // namespace oasiskv::bench::step

absl::Status oasiskv::bench::RunStep() {
  if (absl::GetFlag(FLAGS_check)) return step::CheckAttention();
  OASISKV_ASSIGN_OR_RETURN(const step::RunOptions options, step::OptionsFromFlags());
  OASISKV_ASSIGN_OR_RETURN(const std::vector<step::DeviceResults> results, step::Run(options));
  const step::DeviceResults sum = step::Sum(results);
  if (absl::GetFlag(FLAGS_json)) {
    step::PrintJson(options, sum);
  } else {
    step::PrintTables(options, sum);
  }
  return absl::OkStatus();
}
