// The metrics of memory, sequences, grants and the data plane.
#pragma once

#include <memory>
#include <vector>

#include "common/clock.h"
#include "common/fabric/endpoint.h"
#include "server/core/kv_core.h"

namespace prometheus {
class Collectable;
}

namespace oasiskv::server {

// Everything is read when Prometheus asks, so that a gauge is the true value of that moment and
// never a sum of increments. `core` and `endpoints` must outlive the result.
std::shared_ptr<prometheus::Collectable> MakeCoreMetrics(
    const KvCore& core, std::vector<const fabric::Endpoint*> endpoints);

}  // namespace oasiskv::server
