// One HTTP GET, for /metrics.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace oasiskv::testing {

// The body of http://<address><path>. Errors: PEER_LOST, INTERNAL (no 200).
absl::StatusOr<std::string> HttpGet(const std::string& address, const std::string& path);

// Series of a text exposition, `name` or `name{labels}` as printed, and their values.
std::map<std::string, double> ParseMetrics(const std::string& text);

}  // namespace oasiskv::testing
