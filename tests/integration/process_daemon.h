// The part of mini_cluster that runs processes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/integration/mini_cluster.h"

namespace oasiskv::testing {

std::unique_ptr<TestDaemon> MakeProcessDaemon(std::vector<std::string> flags,
                                              std::string ready_file);

// Adds flags that ask for the ports of `addresses`, which an earlier start got.
void PinAddresses(const server::BoundAddresses& addresses, std::vector<std::string>& flags);

absl::Status NotRunning();

}  // namespace oasiskv::testing
