// attach: latency of one Attach (control call, grant, frame list) of a sealed sequence; its release
// is not timed.
#include <chrono>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "tools/bench/operation.h"
#include "tools/bench/operations.h"
#include "tools/bench/report.h"
#include "tools/bench/testbed.h"

ABSL_FLAG(std::vector<std::string>, frames, std::vector<std::string>({"64", "1024", "8192"}),
          "Frames of the sequence; several are measured in turn.");
ABSL_FLAG(uint32_t, attaches, 2000, "Attaches that are timed.");

namespace oasiskv::bench {
namespace {

// Room for far more frames than an attach is measured with.
constexpr uint64_t kPoolBytes = uint64_t{512} << 20;

// Small frames: the latency depends on their number, not on their size.
Geometry SmallFrames() {
  Geometry g;
  g.layers = 1;
  g.kv_heads = 1;
  g.total_kv_heads = 1;
  g.head_dim = 64;
  g.element_type = ElementType::kBFloat16;
  return g;
}

}  // namespace

absl::Status RunAttach() {
  OASISKV_ASSIGN_OR_RETURN(const TestbedOptions options, TestbedOptions::FromFlags(kPoolBytes));
  OASISKV_ASSIGN_OR_RETURN(const std::vector<uint32_t> counts,
                           Numbers<uint32_t>(absl::GetFlag(FLAGS_frames), "frames"));
  const uint32_t attaches = absl::GetFlag(FLAGS_attaches);
  OASISKV_ASSIGN_OR_RETURN(Testbed bed, Testbed::Create(options));
  std::vector<AttachRow> rows;
  for (uint32_t frames : counts) {
    const Geometry geometry = SmallFrames();
    const std::string name = absl::StrCat("attach-", frames);
    OASISKV_RETURN_IF_ERROR(bed.PutSequence(name, geometry, frames));
    std::vector<double> micros;
    for (uint32_t i = 0; i < attaches + 50; ++i) {
      const auto start = std::chrono::steady_clock::now();
      OASISKV_ASSIGN_OR_RETURN(Reader reader, bed.Attach(name, geometry));
      const double us = Seconds(std::chrono::steady_clock::now() - start) * 1e6;
      if (i >= 50) micros.push_back(us);  // the first ones warm up channel and caches
      OASISKV_RETURN_IF_ERROR(reader.Release());
    }
    AttachRow row;
    row.fabric = bed.fabric();
    row.frames = frames;
    row.attaches = micros.size();
    row.p50_us = Quantile(micros, 0.5);
    row.p99_us = Quantile(micros, 0.99);
    row.p999_us = Quantile(micros, 0.999);
    rows.push_back(row);
    OASISKV_RETURN_IF_ERROR(bed.Drop(name));
  }
  Print(rows, FormatFromFlag());
  return absl::OkStatus();
}

}  // namespace oasiskv::bench
