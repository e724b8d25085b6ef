#include "server/daemon/metrics.h"

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/version.h"

namespace oasiskv::server {
namespace {

using Labels = std::vector<prometheus::ClientMetric::Label>;

// Collects metric families; each has a name with its unit, and one sentence of help.
class Families {
 public:
  Families& Gauge(const char* name, const char* help) {
    return Begin(name, help, prometheus::MetricType::Gauge);
  }
  Families& Counter(const char* name, const char* help) {
    return Begin(name, help, prometheus::MetricType::Counter);
  }
  // Adds a sample to the family that was begun last.
  Families& Add(double value, Labels labels = {}) {
    prometheus::MetricFamily& family = families_.back();
    prometheus::ClientMetric& metric = family.metric.emplace_back();
    metric.label = std::move(labels);
    (family.type == prometheus::MetricType::Gauge ? metric.gauge.value : metric.counter.value) =
        value;
    return *this;
  }
  std::vector<prometheus::MetricFamily> Take() { return std::move(families_); }

 private:
  Families& Begin(const char* name, const char* help, prometheus::MetricType type) {
    prometheus::MetricFamily& family = families_.emplace_back();
    family.name = name;
    family.help = help;
    family.type = type;
    return *this;
  }
  std::vector<prometheus::MetricFamily> families_;
};

void AddCapacity(const CapacityInfo& info, Families& out) {
  out.Gauge("oasiskv_pool_bytes", "Memory of all arenas.").Add(info.pool_bytes);
  out.Gauge("oasiskv_pool_free_bytes", "Memory that is free for new frames.").Add(info.free_bytes);
  out.Gauge("oasiskv_pool_used_bytes", "Memory of frames that sequences or grants hold.")
      .Add(info.used_bytes);
  out.Gauge("oasiskv_pool_quarantined_bytes",
            "Part of the used memory: frames of revoked writers that may still write.")
      .Add(info.quarantined_bytes);
  out.Gauge("oasiskv_pool_overhead_bytes", "Ends of slabs into which no frame fits.")
      .Add(info.overhead_bytes);
  out.Gauge("oasiskv_metadata_bytes", "The daemon's own memory for frames, outside the pool.")
      .Add(info.metadata_bytes);
  out.Gauge("oasiskv_arenas", "Mappings that make up the pool.").Add(info.arenas);
  out.Gauge("oasiskv_slabs", "Slabs of the pool.").Add(info.slabs_total);
  out.Gauge("oasiskv_slabs_free", "Slabs that hold no frame.").Add(info.slabs_free);
  out.Gauge("oasiskv_huge_pages", "1 when every arena uses huge pages.").Add(info.huge_pages);
  out.Gauge("oasiskv_huge_pages_fell_back",
            "1 when huge pages were asked for but too few were free.")
      .Add(info.huge_pages_fell_back);
  out.Gauge("oasiskv_sequences", "Live sequences by state.")
      .Add(info.sequences_open, {{"state", "open"}})
      .Add(info.sequences_sealed, {{"state", "sealed"}})
      .Add(info.sequences_released, {{"state", "released"}});
  out.Gauge("oasiskv_grants", "Live grants by kind.")
      .Add(info.grants_reader, {{"kind", "reader"}})
      .Add(info.grants_writer, {{"kind", "writer"}});
  out.Gauge("oasiskv_frames", "Frames of slabs in use, by frame size.");
  for (const FrameClassInfo& c : info.classes) {
    out.Add(c.frames, {{"frame_bytes", absl::StrCat(c.frame_stride)}});
  }
  out.Gauge("oasiskv_frames_used", "Frames that sequences or grants hold, by frame size.");
  for (const FrameClassInfo& c : info.classes) {
    out.Add(c.frames_used, {{"frame_bytes", absl::StrCat(c.frame_stride)}});
  }
}

void AddCounters(const CoreCounters& counters, Families& out) {
  out.Counter("oasiskv_opens_total", "Sequences opened.").Add(counters.opens);
  out.Counter("oasiskv_attaches_total", "Grants given to readers.").Add(counters.attaches);
  out.Counter("oasiskv_commits_total", "Commits accepted.").Add(counters.commits);
  out.Counter("oasiskv_seals_total", "Sequences sealed.").Add(counters.seals);
  out.Counter("oasiskv_renewals_total", "Calls that renewed leases.").Add(counters.renewals);
  out.Counter("oasiskv_grants_ended_total", "Grants that ended, by reason.")
      .Add(counters.grants_released, {{"reason", "released"}})
      .Add(counters.grants_expired, {{"reason", "expired"}})
      .Add(counters.grants_revoked, {{"reason", "revoked"}});
  out.Counter("oasiskv_sequences_ended_total",
              "Sequences that ended, by reason (expired: the writer's lease ended before the seal; "
              "unattended: sealed, and without a grant for --unattended_ttl).")
      .Add(counters.sequences_released, {{"reason", "released"}})
      .Add(counters.sequences_aborted, {{"reason", "aborted"}})
      .Add(counters.sequences_expired, {{"reason", "expired"}})
      .Add(counters.sequences_unattended, {{"reason", "unattended"}});
  out.Counter("oasiskv_stale_requests_total",
              "Calls and data requests refused because their grant was gone.")
      .Add(counters.stale_requests);
  out.Counter("oasiskv_expired_requests_total",
              "Calls and data requests refused because their grant's lease had ended.")
      .Add(counters.expired_requests);
  out.Counter("oasiskv_capacity_refusals_total",
              "Calls refused because memory or a limit was used up.")
      .Add(counters.capacity_refusals);
}

struct FabricMetric {
  const char* name;
  const char* help;
  uint64_t fabric::EndpointStats::*value;
};
constexpr FabricMetric kFabricCounters[] = {
    {"oasiskv_fabric_connections_total", "Data connections accepted.",
     &fabric::EndpointStats::connections_total},
    {"oasiskv_fabric_connections_refused_total", "Data connections refused.",
     &fabric::EndpointStats::connections_refused},
    {"oasiskv_fabric_requests_total", "Data requests that arrived.",
     &fabric::EndpointStats::requests},
    {"oasiskv_fabric_requests_refused_total", "Data requests answered with an error.",
     &fabric::EndpointStats::requests_refused},
    {"oasiskv_fabric_malformed_total", "Data requests that could not be parsed.",
     &fabric::EndpointStats::malformed},
    {"oasiskv_fabric_read_bytes_total",
     "Bytes sent to readers (always 0 for shm and verbs, whose readers access the memory "
     "directly).",
     &fabric::EndpointStats::bytes_read},
    {"oasiskv_fabric_written_bytes_total",
     "Bytes received from writers (always 0 for shm and verbs, whose writers access the memory "
     "directly).",
     &fabric::EndpointStats::bytes_written},
};

void AddFabrics(const std::vector<const fabric::Endpoint*>& endpoints, Families& out) {
  std::vector<std::pair<std::string, fabric::EndpointStats>> all;
  all.reserve(endpoints.size());
  for (const fabric::Endpoint* endpoint : endpoints) {
    all.emplace_back(std::string(endpoint->fabric()), endpoint->Stats());
  }
  out.Gauge("oasiskv_fabric_connections", "Data connections now.");
  for (const auto& [name, stats] : all) out.Add(stats.connections, {{"fabric", name}});
  out.Gauge("oasiskv_fabric_transport_connections",
            "Data connections of the ucx fabric now, by the transport that UCX chose.");
  for (const auto& [name, stats] : all) {
    for (const fabric::TransportCount& count : stats.transports) {
      out.Add(count.connections, {{"fabric", name}, {"transport", count.transport}});
    }
  }
  for (const FabricMetric& metric : kFabricCounters) {
    out.Counter(metric.name, metric.help);
    for (const auto& [name, stats] : all) out.Add(stats.*metric.value, {{"fabric", name}});
  }
}

class CoreMetrics : public prometheus::Collectable {
 public:
  CoreMetrics(const KvCore& core, std::vector<const fabric::Endpoint*> endpoints)
      : core_(core), endpoints_(std::move(endpoints)) {}

  std::vector<prometheus::MetricFamily> Collect() const override {
    Families out;
    out.Gauge("oasiskv_build_info", "Always 1; the labels say which daemon this is.")
        .Add(1, {{"version", Version()}, {"incarnation", absl::StrCat(core_.incarnation())}});
    out.Gauge("oasiskv_uptime_seconds", "Time since the daemon began to serve.")
        .Add(std::chrono::duration<double>(Clock::Real().Now() - started_).count());
    out.Gauge("oasiskv_draining", "1 while the daemon drains and opens nothing new.")
        .Add(core_.draining());
    AddCapacity(core_.Capacity(), out);
    AddCounters(core_.Counters(), out);
    AddFabrics(endpoints_, out);
    return out.Take();
  }

 private:
  const KvCore& core_;
  const std::vector<const fabric::Endpoint*> endpoints_;
  const MonotonicTime started_ = Clock::Real().Now();
};

}  // namespace

std::shared_ptr<prometheus::Collectable> MakeCoreMetrics(
    const KvCore& core, std::vector<const fabric::Endpoint*> endpoints) {
  return std::make_shared<CoreMetrics>(core, std::move(endpoints));
}

}  // namespace oasiskv::server
