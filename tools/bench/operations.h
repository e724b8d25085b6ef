// The operations of oasis-bench.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/bench/report.h"
#include "tools/bench/testbed.h"

namespace oasiskv::bench {

enum class Verify { kOn, kOff };
enum class MeasureCeiling { kOn, kOff };
enum class Buffers { kRegistered, kPlain };

struct FetchOptions {
  TestbedOptions testbed;
  std::vector<uint64_t> entry_bytes;
  std::vector<uint32_t> batches;  // entries a batch
  uint32_t depth = 1;             // batches in flight
  double seconds = 2;             // timed, per point
  int rounds = 7;                 // the time is cut into rounds; figures are medians over them
  uint64_t span_bytes = uint64_t{512} << 20;  // of KV that random entries are drawn from
  uint64_t seed = 1;
  Verify verify = Verify::kOn;
  Buffers buffers = Buffers::kRegistered;
  MeasureCeiling ceiling = MeasureCeiling::kOn;
  Format format = Format::kTable;
};
// CHECKSUM_MISMATCH naming the entry when a byte was wrong.
absl::Status RunFetch(const FetchOptions& options);

struct AttachOptions {
  TestbedOptions testbed;
  std::vector<uint32_t> frames;
  uint32_t attaches = 2000;
  Format format = Format::kTable;
};
absl::Status RunAttach(const AttachOptions& options);

}  // namespace oasiskv::bench
