// One client process of the soak: reads or writes sequences until its standard input ends.
#pragma once

#include <string>
#include <vector>

#include "oasiskv/client.h"

namespace oasiskv::testing {

struct SoakWorkerOptions {
  bool writer = false;
  std::string address;
  std::string fabric = "verbs";
  uint32_t number = 0;    // of this process; never given twice
  uint32_t position = 0;  // of its calls in the tally
  int tally_fd = -1;

  std::vector<std::string> ToArguments() const;  // after the word that makes a worker of a process
  static SoakWorkerOptions FromArguments(int argc, char** argv);
};

inline constexpr char kSoakWorker[] = "--soak_worker";
inline constexpr uint32_t kSoakThreads = 2;  // of a worker
inline constexpr uint32_t kSoakSlots = 8;    // names that all workers share

// The exit code.
int RunSoakWorker(const SoakWorkerOptions& options);

}  // namespace oasiskv::testing
