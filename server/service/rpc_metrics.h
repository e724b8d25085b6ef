// What the control plane counts about its own calls.
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
// One counter a method and outcome, one histogram of latencies a method. Methods are a fixed set,
// so the number of time series is bounded whatever callers do.
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
