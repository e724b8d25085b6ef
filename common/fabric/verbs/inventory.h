// What a daemon or client would take of this machine's RDMA devices. No verbs header.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/fabric/verbs/gid.h"
#include "common/fabric/verbs/verbs.h"

namespace oasiskv::fabric::verbs {

// Thread contract: a plain value.
struct TakenPort {
  std::string device;
  uint32_t port = 0;
  bool infiniband = false;
  GidEntry gid;
  std::string reason;                   // GidChoice::reason
  uint64_t max_registration_bytes = 0;  // max_mr_size
  // OK when memory of a GPU can be registered (GPUDirect RDMA by dma-buf), else why not.
  absl::Status device_memory;
};

// Finds the port and its GID by the rules of ServeVerbs and closes the device again: nothing is
// registered, nobody is spoken to. Errors: as ServeVerbs.
absl::StatusOr<TakenPort> PortToTake(const VerbsPortOptions& options);

}  // namespace oasiskv::fabric::verbs
