// The best that the same machine does with the same sizes, measured in the same run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace oasiskv::bench {

struct CopyPiece {
  const std::byte* from = nullptr;
  std::byte* into = nullptr;
};

// Copies the pieces with memcpy, in order; gives the seconds it took.
double TimeMemcpy(std::span<const CopyPiece> pieces, size_t bytes_each);

struct UcxCeiling {
  double gbps = 0;
  std::string command;  // what was run
};

// Runs `ucx_perftest -t TEST` over TCP on loopback, `outstanding` operations of `bytes` each in
// flight, for about `seconds`. Tests: "ucp_get" (UCX's own emulated get) and "ucp_am_bw" (its
// active messages, one way). NOT_FOUND when ucx_perftest is not installed (Debian: ucx-utils).
absl::StatusOr<UcxCeiling> MeasureUcx(const std::string& test, uint64_t bytes, uint32_t outstanding,
                                      double seconds);

}  // namespace oasiskv::bench
