// A number of bytes as the value of a flag: "64MiB", "1GiB", "4096".
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace oasiskv {

// Thread contract: a plain value.
struct ByteSize {
  uint64_t bytes = 0;
};

// Digits and one of the suffixes B, KiB, MiB, GiB, TiB or none (bytes). False with `error` set for
// anything else: also for sizes beyond 64 bits, and for decimal units (KB, MB), which are easily
// confused with binary ones.
bool AbslParseFlag(absl::string_view text, ByteSize* size, std::string* error);
// In the largest unit that divides the size.
std::string AbslUnparseFlag(ByteSize size);

}  // namespace oasiskv
