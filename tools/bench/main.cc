// oasis-bench: measures the data path, always beside the ceiling of the same machine, and compares
// the bytes.
#include <vector>

#include "tools/bench/gpu/operations.h"
#include "tools/bench/operation.h"
#include "tools/bench/operations.h"

int main(int argc, char** argv) {
  using namespace oasiskv::bench;  // NOLINT: main() alone
  std::vector<Operation> operations = {
      {"fetch",
       "random entries in batches: GB/s, latency and CPU, beside the machine's ceiling",
       "fetch --fabric=shm --entry_bytes=8192,65536 --batch=64",
       {"fetch.cc", "testbed.cc", "report.cc"},
       RunFetch},
      {"attach",
       "latency of an attach, by the number of frames",
       "attach --frames=64,1024",
       {"attach.cc", "testbed.cc", "report.cc"},
       RunAttach},
      {"put",
       "rate of whole sequences, and what clearing memory between tenants costs",
       "put --fabric=shm",
       {"put.cc", "testbed.cc", "report.cc"},
       RunPut}};
  const std::vector<Operation> gpu = GpuOperations();
  operations.insert(operations.end(), gpu.begin(), gpu.end());
  return RunProgram(argc, argv, "oasis-bench",
                    "measures the data path beside the ceiling of the same machine", operations);
}
