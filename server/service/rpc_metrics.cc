#include "server/service/rpc_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <string>

#include "oasiskv/error.h"

namespace oasiskv::server {
namespace {

const prometheus::Histogram::BucketBoundaries& LatencyBounds() {
  static const auto* const kBounds = new prometheus::Histogram::BucketBoundaries{
      0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10};
  return *kBounds;
}

}  // namespace

struct RpcMetrics::Impl {
  prometheus::Family<prometheus::Counter>& calls;
  prometheus::Family<prometheus::Histogram>& latencies;
};

RpcMetrics::RpcMetrics(prometheus::Registry& registry)
    : impl_(new Impl{
          prometheus::BuildCounter()
              .Name("oasiskv_rpc_calls_total")
              .Help(
                  "Control calls that ended, by method and outcome (OK or the error code's name).")
              .Register(registry),
          prometheus::BuildHistogram()
              .Name("oasiskv_rpc_duration_seconds")
              .Help("Time from a control call's arrival to its answer, including waits for a seal.")
              .Register(registry)}) {}

RpcMetrics::~RpcMetrics() = default;

void RpcMetrics::Observe(absl::string_view method, const absl::Status& status, Duration latency) {
  const std::string name(method);
  const std::string outcome(status.ok() ? "OK" : ErrorCodeName(ErrorCodeOf(status)));
  impl_->calls.Add({{"method", name}, {"outcome", outcome}}).Increment();
  impl_->latencies.Add({{"method", name}}, LatencyBounds())
      .Observe(std::chrono::duration<double>(latency).count());
}

}  // namespace oasiskv::server
