// The core fuzzed as programs: random steps, each with the answer the model expects, and invariants
// after every one. A failure prints the steps that led to it; OASISKV_FUZZ_SEED=<n> runs one seed,
// OASISKV_FUZZ_STEPS=<n> that many steps of each.
#include <cstdlib>

#include "gtest/gtest.h"
#include "tests/fuzz/core_program.h"

namespace oasiskv::server {
namespace {

TEST(CoreFuzz, RandomProgramsAgreeWithTheModel) {
  const char* one_seed = std::getenv("OASISKV_FUZZ_SEED");
  const char* step_count = std::getenv("OASISKV_FUZZ_STEPS");
  const int steps = step_count != nullptr ? std::atoi(step_count) : 1000;
  const uint32_t first = one_seed != nullptr ? static_cast<uint32_t>(std::atoi(one_seed)) : 1;
  const uint32_t last = one_seed != nullptr ? first : 20;
  for (uint32_t seed = first; seed <= last; ++seed) {
    Program program(seed);
    bool good = true;
    for (int i = 0; i < steps && good; ++i) good = program.Step();
    if (good) program.Finish();
    if (HasFailure()) {
      FAIL() << "seed " << seed << ", the last steps:\n" << program.Steps();
    }
  }
}

}  // namespace
}  // namespace oasiskv::server
