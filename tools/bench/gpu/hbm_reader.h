// A kernel that does nothing but read HBM, as a neighbour that is bound by it.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace oasiskv::bench {

// Reads `bytes` (a multiple of 64 KiB) with a full grid of short CTAs, so that others find room
// between them. `sink` is written only if the bytes have one certain sum. Returns the launch's
// error text, or null.
const char* ReadHbm(const std::byte* from, uint64_t bytes, uint64_t* sink, CUstream_st* stream);

}  // namespace oasiskv::bench
