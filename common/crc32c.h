// CRC32C (Castagnoli polynomial, RFC 3720 appendix B.4), as used by the checksum mode.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace oasiskv {

// CRC32C of `data`; to continue over several pieces pass the last result as `seed`. Uses the CPU's
// CRC32 instruction where there is one.
uint32_t Crc32c(std::span<const std::byte> data, uint32_t seed = 0);

// The table-driven form for machines without the instruction; public so that a test can compare the
// two.
uint32_t Crc32cPortable(std::span<const std::byte> data, uint32_t seed = 0);

}  // namespace oasiskv
