#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "tools/bench/gpu/commands.h"

namespace {

struct Command {
  const char* name;
  const char* what;
  int (*run)();
};
constexpr Command kCommands[] = {
    {"score", "score and top-K of a layer, beside the rate at which HBM is read",
     oasiskv::bench::ScoreCommand},
    {"select", "the delta of predictions against the residents", oasiskv::bench::SelectCommand},
    {"gather",
     "random entries of host memory into pages, beside the copy engine and an HBM-bound kernel",
     oasiskv::bench::GatherCommand},
};

int Usage() {
  std::fprintf(stderr, "usage: oasis-gpu-bench COMMAND [--flags]\n");
  for (const Command& c : kCommands) std::fprintf(stderr, "  %-10s %s\n", c.name, c.what);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("oasis-gpu-bench COMMAND [--flags]: kernels on this machine's GPU");
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  if (rest.size() != 2) return Usage();
  for (const Command& c : kCommands) {
    if (std::strcmp(rest[1], c.name) != 0) continue;
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      std::fprintf(stderr, "oasis-gpu-bench: needs an NVIDIA GPU and its driver; none was found\n");
      return 1;
    }
    return c.run();
  }
  return Usage();
}
