// What a process holds, and what the kernel holds for RDMA.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>

namespace oasiskv::testing {

struct ProcessFigures {
  int64_t descriptors = 0;
  int64_t threads = 0;
  int64_t kib = 0;  // resident
};
ProcessFigures FiguresOf(pid_t process);

// Per device what `rdma resource` counts, "rxe0 qp" -> 1; empty where there is no device.
std::map<std::string, int64_t> RdmaResources();

// Where the threads of a process wait, for a process that hangs.
std::string WhereThreadsWait(pid_t process);

}  // namespace oasiskv::testing
