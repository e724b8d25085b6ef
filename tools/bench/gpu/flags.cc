#include "tools/bench/gpu/flags.h"

#include <string>

#include "absl/flags/flag.h"
#include "tools/bench/operation.h"

ABSL_FLAG(uint32_t, resident, 128, "K: resident blocks per head, layer and request.");
ABSL_FLAG(std::string, summaries, "as_keys",
          "What the working set keeps key summaries as: as_keys (BF16) or fp8 (E4M3).");

namespace oasiskv::bench {

absl::StatusOr<SummaryType> SummariesFromFlag() {
  const std::string summaries = absl::GetFlag(FLAGS_summaries);
  if (summaries == "as_keys") return SummaryType::kAsKeys;
  if (summaries == "fp8") return SummaryType::kFloat8;
  return Refuse(absl::StrCat("--summaries=", summaries, " is neither as_keys nor fp8"));
}

}  // namespace oasiskv::bench
