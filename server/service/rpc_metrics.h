// Metrics of the control plane's calls.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"

namespace prometheus {
class Registry;
}

namespace oasiskv::server {

// Thread contract: safe for concurrent use.
//
// One counter per method and outcome, and one histogram of latencies per method. The methods are a
// fixed set, so callers cannot create more time series.
class RpcMetrics {
 public:
  // `registry` must outlive this object.
  explicit RpcMetrics(prometheus::Registry& registry);
  ~RpcMetrics();

  // `method` is "KvMemory/Open", ...; waits for a seal are part of an attach's latency.
  void Observe(absl::string_view method, const absl::Status& status, Duration latency);

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace oasiskv::server
