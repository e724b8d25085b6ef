// attach: latency of one Attach (control call, grant, frame list) of a sealed sequence; the release
// is not timed.
#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "tools/bench/operations.h"

namespace oasiskv::bench {
namespace {

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

absl::Status RunAttach(const AttachOptions& options) {
  OASISKV_ASSIGN_OR_RETURN(Testbed bed, Testbed::Create(options.testbed));
  std::vector<AttachRow> rows;
  for (uint32_t frames : options.frames) {
    const Geometry geometry = SmallFrames();
    const std::string name = absl::StrCat("attach-", frames);
    OASISKV_RETURN_IF_ERROR(bed.PutSequence(name, geometry, frames));
    std::vector<double> micros;
    for (uint32_t i = 0; i < options.attaches + 50; ++i) {
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
  Print(rows, options.format);
  return absl::OkStatus();
}

}  // namespace oasiskv::bench
