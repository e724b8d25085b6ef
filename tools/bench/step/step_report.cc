#include "tools/bench/step/step_report.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_format.h"

namespace oasiskv::bench::step {
namespace {

double Giga(double bytes) { return bytes / 1e9; }
double Milli(double seconds) { return seconds * 1e3; }

double FractionOfBound(const SideResult& r) { return r.bound_seconds / r.step_seconds.median; }

const char* SummariesOf(const RunOptions& o) {
  return o.summaries == SummaryType::kFloat8 ? "fp8" : "as_keys";
}

double ExposedWaitMicros(const RunOptions& o, const SideResult& r) {
  return (r.step_seconds.median - r.foreground_seconds) / o.model.layers * 1e6;
}

std::string Relative(const SideResult* dense, const SideResult& r) {
  if (dense == nullptr) return "-";
  return absl::StrFormat("%.3f", r.tokens_per_second.median / dense->tokens_per_second.median);
}

void PrintStages(const RunOptions& o, const SideResult& r) {
  std::printf("%s, batch %u", r.side.c_str(), r.batch);
  if (r.side == "sparse") std::printf(", ratio %.2f, spare %u", r.ratio, r.spare);
  std::printf(": stages in ms per step, eager:");
  for (size_t s = 0; s < kStages; ++s) {
    if (r.stages.seconds[s] == 0) continue;
    std::printf(" %s %.2f", StageName(static_cast<Stage>(s)), Milli(r.stages.seconds[s]));
  }
  std::printf("; products tuned alone %.2f", Milli(r.weights_seconds));
  if (r.side == "sparse") {
    std::printf("; graph of the foreground alone %.2f, so that %.0f us per layer are exposed",
                Milli(r.foreground_seconds), ExposedWaitMicros(o, r));
  }
  std::printf("\n");
}

}  // namespace

const SideResult* DenseOf(const RunOptions& options, const DeviceResults& results,
                          const SideResult& sparse) {
  const SideResult* found = nullptr;
  for (const SideResult& r : results.sides) {
    if (r.side != "dense") continue;
    if (!options.batches.empty() && r.batch == sparse.batch) return &r;
    if (found == nullptr || r.tokens_per_second.median > found->tokens_per_second.median) {
      found = &r;
    }
  }
  return found;
}

void PrintTables(const RunOptions& o, const DeviceResults& results) {
  const RunInfo& info = results.info;
  const Ceilings& c = results.ceilings;
  std::printf(
      "%s, %u tokens, %u x %s, %.1f GiB HBM each (weights %.1f GB); medians of %u rounds of "
      "%u steps, %s\n",
      info.model.c_str(), info.context, info.devices, info.gpu.c_str(),
      static_cast<double>(info.hbm) / (uint64_t{1} << 30), Giga(static_cast<double>(info.weights)),
      info.rounds, info.steps, o.eager ? "eager" : "one graph per step");
  std::printf("ceilings, GB/s: HBM read %.0f, copy (read + written) %.0f", Giga(c.hbm_read),
              Giga(c.hbm_copy));
  if (o.sparse) {
    std::printf(
        "; link: copy engine %.1f, gather alone %.1f (%u CTAs x %u x %u), gather beside a "
        "reading kernel %.1f (which reads %.0f)",
        Giga(c.copy_engine), Giga(c.gather_alone), info.gather_ctas, info.gather_threads,
        info.gather_loads, Giga(c.gather_beside), Giga(c.hbm_read_beside));
    std::printf(
        "\nhost memory: %.1f GB, %u distinct sequences per GPU, which requests share; "
        "churn asked for %.1f, measured %.2f of %u; summaries %s; multiprocessors for scores "
        "alone: %u",
        Giga(static_cast<double>(info.host_bytes)), info.host_sequences, o.churn, results.churn,
        info.resident, SummariesOf(o), o.predict_processors);
  }
  std::printf("\n\n%-6s %5s %6s %5s %9s %16s %14s %9s %9s %7s %8s %8s %8s\n", "side", "batch",
              "ratio", "spare", "fetched", "tokens/s", "TPOT ms", "HBM GB", "link GB", "GB/s",
              "bound ms", "of bound", "x dense");
  for (const SideResult& r : results.sides) {
    const bool sparse = r.side == "sparse";
    std::printf(
        "%-6s %5u %6s %5s %9s %16s %14s %9.1f %9.2f %7.1f %8.2f %8.3f %8s\n", r.side.c_str(),
        r.batch, sparse ? absl::StrFormat("%.2f", r.ratio).c_str() : "-",
        sparse ? absl::StrFormat("%d", r.spare).c_str() : "-",
        sparse ? absl::StrFormat("%.2f", r.fetched).c_str() : "-",
        absl::StrFormat("%.0f +-%.0f", r.tokens_per_second.median, r.tokens_per_second.half_iqr)
            .c_str(),
        absl::StrFormat("%.2f +-%.2f", Milli(r.step_seconds.median), Milli(r.step_seconds.half_iqr))
            .c_str(),
        Giga(r.hbm_bytes), Giga(r.link_bytes), Giga(r.link_bytes / r.step_seconds.median),
        Milli(r.bound_seconds), FractionOfBound(r),
        sparse ? Relative(DenseOf(o, results, r), r).c_str() : "-");
  }
  std::printf("\nHBM of a request:");
  for (const char* side : {"dense", "sparse"}) {
    for (const SideResult& r : results.sides) {
      if (r.side != side) continue;
      std::printf(" %s %.1f MB", side, static_cast<double>(r.request_bytes) / 1e6);
      break;
    }
  }
  std::printf("\n");
  for (const SideResult& r : results.sides) PrintStages(o, r);
  std::fflush(stdout);
}

void PrintJson(const RunOptions& o, const DeviceResults& results) {
  const RunInfo& info = results.info;
  nlohmann::json common = {
      {"operation", "step"},     {"model", info.model},     {"gpu", info.gpu},
      {"devices", info.devices}, {"context", info.context}, {"resident", info.resident},
      {"hbm_bytes", info.hbm},   {"churn_asked", o.churn},  {"rounds", info.rounds}};
  common.update({{"steps", info.steps},
                 {"gather_ctas", info.gather_ctas},
                 {"gather_threads", info.gather_threads},
                 {"gather_loads", info.gather_loads},
                 {"predict_processors", o.predict_processors}});
  const Ceilings& c = results.ceilings;
  nlohmann::json j = common;
  j.update({{"kind", "ceilings"},
            {"hbm_read_gbps", Giga(c.hbm_read)},
            {"hbm_copy_gbps", Giga(c.hbm_copy)},
            {"copy_engine_gbps", Giga(c.copy_engine)},
            {"gather_alone_gbps", Giga(c.gather_alone)},
            {"gather_beside_gbps", Giga(c.gather_beside)},
            {"hbm_read_beside_gbps", Giga(c.hbm_read_beside)},
            {"host_bytes", info.host_bytes},
            {"host_sequences", info.host_sequences},
            {"churn_measured", results.churn},
            {"walk", info.walk}});
  std::printf("%s\n", j.dump().c_str());
  for (const SideResult& r : results.sides) {
    j = common;
    j.update({{"kind", r.side},
              {"batch", r.batch},
              {"request_bytes", r.request_bytes},
              {"tokens_per_second", r.tokens_per_second.median},
              {"tokens_per_second_half_iqr", r.tokens_per_second.half_iqr},
              {"tpot_ms", Milli(r.step_seconds.median)},
              {"tpot_half_iqr_ms", Milli(r.step_seconds.half_iqr)},
              {"hbm_gb", Giga(r.hbm_bytes)},
              {"bound_ms", Milli(r.bound_seconds)},
              {"fraction_of_bound", FractionOfBound(r)},
              {"eager", r.eager},
              {"graph_nodes", r.graph_nodes},
              {"products_alone_ms", Milli(r.weights_seconds)}});
    for (size_t s = 0; s < kStages; ++s) {
      j["stage_ms"][StageName(static_cast<Stage>(s))] = Milli(r.stages.seconds[s]);
    }
    if (r.side == "sparse") {
      j.update({{"ratio", r.ratio},
                {"spare", r.spare},
                {"summaries", SummariesOf(o)},
                {"churn", r.churn},
                {"fetched", r.fetched},
                {"refused", r.refused},
                {"link_gb", Giga(r.link_bytes)},
                {"link_gbps", Giga(r.link_bytes / r.step_seconds.median)},
                {"foreground_ms", Milli(r.foreground_seconds)},
                {"exposed_wait_us_per_layer", ExposedWaitMicros(o, r)}});
      if (const SideResult* dense = DenseOf(o, results, r); dense != nullptr) {
        j["relative_to_dense"] = r.tokens_per_second.median / dense->tokens_per_second.median;
      }
    }
    std::printf("%s\n", j.dump().c_str());
  }
  std::fflush(stdout);
}

}  // namespace oasiskv::bench::step
