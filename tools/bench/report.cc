#include "tools/bench/report.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

ABSL_FLAG(bool, json, false, "Print one JSON object per line instead of a table.");

namespace oasiskv::bench {
namespace {

// Printed figures are rounded to what a run can repeat; the JSON has them whole.
std::string WithSpread(const Spread& s) {
  return absl::StrFormat("%.2f +-%.2f", s.median, s.half_iqr);
}

nlohmann::json ToJson(const FetchRow& r) {
  nlohmann::json j = {{"operation", "fetch"},
                      {"fabric", r.fabric},
                      {"entry_bytes", r.entry_bytes},
                      {"batch", r.batch},
                      {"depth", r.depth},
                      {"entries", r.entries},
                      {"bytes_verified", r.bytes_verified},
                      {"gbps", r.gbps.median},
                      {"gbps_half_iqr", r.gbps.half_iqr},
                      {"ceiling_gbps", r.ceiling.median},
                      {"ceiling_half_iqr", r.ceiling.half_iqr},
                      {"ceiling", r.ceiling_name},
                      {"p50_us", r.p50_us},
                      {"p99_us", r.p99_us},
                      {"p999_us", r.p999_us},
                      {"prepare_us", r.prepare_us},
                      {"post_us", r.post_us},
                      {"wire_us", r.wire_us},
                      {"cpu_client_s_per_gib", r.cpu_client_s_per_gib},
                      {"request_bytes_per_entry", r.request_bytes_per_entry},
                      {"requests_per_entry", r.requests_per_entry}};
  if (r.direct_share) j["direct_share"] = *r.direct_share;
  if (r.am_ceiling) j["am_ceiling_gbps"] = *r.am_ceiling;
  if (r.cpu_server_s_per_gib) {
    j["cpu_server_s_per_gib"] = *r.cpu_server_s_per_gib;
    j["cpu_s_per_gib"] = r.cpu_client_s_per_gib + *r.cpu_server_s_per_gib;
  } else {
    j["cpu_s_per_gib"] = r.cpu_client_s_per_gib;
  }
  return j;
}

}  // namespace

Format FormatFromFlag() { return absl::GetFlag(FLAGS_json) ? Format::kJson : Format::kTable; }

void Print(const std::vector<FetchRow>& rows, Format format) {
  if (format == Format::kJson) {
    for (const FetchRow& r : rows) std::printf("%s\n", ToJson(r).dump().c_str());
    std::fflush(stdout);
    return;
  }
  std::printf("%-6s %9s %6s %6s  %14s %16s %6s  %9s %9s %9s  %8s %8s %8s  %9s %9s\n", "fabric",
              "entry B", "batch", "depth", "GB/s", "ceiling GB/s", "ratio", "p50 us", "p99 us",
              "p999 us", "prep us", "post us", "wire us", "cli s/GiB", "srv s/GiB");
  for (const FetchRow& r : rows) {
    const bool has_ceiling = r.ceiling.median > 0;
    std::printf(
        "%-6s %9lu %6u %6u  %14s %16s %6s  %9.1f %9.1f %9.1f  %8.1f %8.1f %8.1f  %9.3f %9s\n",
        r.fabric.c_str(), static_cast<unsigned long>(r.entry_bytes), r.batch, r.depth,
        WithSpread(r.gbps).c_str(), has_ceiling ? WithSpread(r.ceiling).c_str() : "not measured",
        has_ceiling ? absl::StrFormat("%.2f", r.gbps.median / r.ceiling.median).c_str() : "-",
        r.p50_us, r.p99_us, r.p999_us, r.prepare_us, r.post_us, r.wire_us, r.cpu_client_s_per_gib,
        r.cpu_server_s_per_gib ? absl::StrFormat("%.3f", *r.cpu_server_s_per_gib).c_str()
                               : "unknown");
  }
  for (const FetchRow& r : rows) {
    std::printf(
        "%s %lu B: ceiling is %s; %.0f MB compared byte by byte, all right%s\n", r.fabric.c_str(),
        static_cast<unsigned long>(r.entry_bytes), r.ceiling_name.c_str(),
        static_cast<double>(r.bytes_verified) / 1e6,
        r.am_ceiling
            ? absl::StrFormat("; UCX active messages one way (ucp_am_bw): %.2f GB/s", *r.am_ceiling)
                  .c_str()
            : "");
  }
}

void Print(const std::vector<AttachRow>& rows, Format format) {
  if (format == Format::kTable) {
    std::printf("%-6s %8s %9s  %9s %9s %9s\n", "fabric", "frames", "attaches", "p50 us", "p99 us",
                "p999 us");
  }
  for (const AttachRow& r : rows) {
    if (format == Format::kJson) {
      const nlohmann::json j = {{"operation", "attach"}, {"fabric", r.fabric},
                                {"frames", r.frames},    {"attaches", r.attaches},
                                {"p50_us", r.p50_us},    {"p99_us", r.p99_us},
                                {"p999_us", r.p999_us}};
      std::printf("%s\n", j.dump().c_str());
    } else {
      std::printf("%-6s %8u %9lu  %9.1f %9.1f %9.1f\n", r.fabric.c_str(), r.frames,
                  static_cast<unsigned long>(r.attaches), r.p50_us, r.p99_us, r.p999_us);
    }
  }
  std::fflush(stdout);
}

void Print(const std::vector<PutRow>& rows, Format format) {
  if (format == Format::kTable) {
    std::printf("%-6s %12s %8s %12s  %14s %9s  %12s %12s\n", "fabric", "clear_frames", "tenants",
                "sequence B", "GB/s", "to never", "open p50 us", "open p99 us");
  }
  for (const PutRow& r : rows) {
    if (format == Format::kJson) {
      const nlohmann::json j = {{"operation", "put"},
                                {"fabric", r.fabric},
                                {"clear_frames", r.clear_frames},
                                {"tenants", r.tenants},
                                {"sequence_bytes", r.sequence_bytes},
                                {"gbps", r.gbps.median},
                                {"gbps_half_iqr", r.gbps.half_iqr},
                                {"open_p50_us", r.open_p50_us},
                                {"open_p99_us", r.open_p99_us}};
      std::printf("%s\n", j.dump().c_str());
    } else {
      std::printf("%-6s %12s %8u %12lu  %14s %9.3f  %12.1f %12.1f\n", r.fabric.c_str(),
                  r.clear_frames.c_str(), r.tenants, static_cast<unsigned long>(r.sequence_bytes),
                  WithSpread(r.gbps).c_str(), r.gbps.median / rows.front().gbps.median,
                  r.open_p50_us, r.open_p99_us);
    }
  }
  std::fflush(stdout);
}

}  // namespace oasiskv::bench
