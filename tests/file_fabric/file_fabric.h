// A fabric for tests: clients read the daemon's memory as plain files.
#pragma once

#include "common/fabric/registry.h"

namespace oasiskv::testing {

// "file": reads only, with pread from the paths that the daemon describes; a write is UNSUPPORTED.
// The pause point file.before_grant_word lies between data and word.
const fabric::Fabric& FileFabric();

}  // namespace oasiskv::testing
