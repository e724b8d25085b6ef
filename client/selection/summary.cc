#include "client/selection/summary.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace oasiskv {
namespace {

// Floating-point numbers of one width, ordered as signed integers: for those of the sign bit the
// other bits are flipped, so that rising integers are rising numbers. Integer min and max take
// one instruction per vector and need no conversion.
template <typename Bits>
struct Ordered {
  static constexpr Bits kMost = std::numeric_limits<Bits>::max();
  static constexpr Bits kLeast = std::numeric_limits<Bits>::min();
  // Its own inverse.
  static Bits Flip(Bits bits) {
    return static_cast<Bits>(bits ^ ((bits < 0 ? Bits{-1} : Bits{0}) & kMost));
  }
};

// `infinity`: its bit pattern; a number whose other bits exceed it is a NaN. A NaN takes no part:
// for the minimum it counts as the greatest integer, for the maximum as the least, both of which
// are patterns of NaNs again.
template <typename Bits>
void Summarise(uint32_t head_dim, Bits infinity, const std::byte* keys, int64_t key_stride,
               uint32_t tokens, std::byte* summary) {
  using O = Ordered<Bits>;
  // Dimensions at a time: key, minimum and maximum stay in the first cache.
  constexpr uint32_t kChunk = 256;
  Bits row[kChunk], low[kChunk], high[kChunk];
  for (uint32_t first = 0; first < head_dim; first += kChunk) {
    const uint32_t n = std::min(kChunk, head_dim - first);
    std::fill_n(low, n, O::kMost);
    std::fill_n(high, n, O::kLeast);
    for (uint32_t t = 0; t < tokens; ++t) {
      std::memcpy(row, keys + int64_t{t} * key_stride + uint64_t{first} * sizeof(Bits),
                  n * sizeof(Bits));
      for (uint32_t d = 0; d < n; ++d) {
        const bool nan = (row[d] & O::kMost) > infinity;
        const Bits ordered = O::Flip(row[d]);
        low[d] = std::min(low[d], nan ? O::kMost : ordered);
        high[d] = std::max(high[d], nan ? O::kLeast : ordered);
      }
    }
    for (uint32_t d = 0; d < n; ++d) {
      low[d] = O::Flip(low[d]);
      high[d] = O::Flip(high[d]);
    }
    std::memcpy(summary + uint64_t{first} * sizeof(Bits), low, n * sizeof(Bits));
    std::memcpy(summary + (uint64_t{head_dim} + first) * sizeof(Bits), high, n * sizeof(Bits));
  }
}

}  // namespace

void SummariseKeys(ElementType type, uint32_t head_dim, const std::byte* keys, int64_t key_stride,
                   uint32_t tokens, std::byte* summary) {
  switch (type) {
    case ElementType::kFloat16:
      return Summarise<int16_t>(head_dim, 0x7C00, keys, key_stride, tokens, summary);
    case ElementType::kBFloat16:
      return Summarise<int16_t>(head_dim, 0x7F80, keys, key_stride, tokens, summary);
    case ElementType::kFloat32:
      return Summarise<int32_t>(head_dim, 0x7F800000, keys, key_stride, tokens, summary);
    case ElementType::kUnspecified:
      return;
  }
}

}  // namespace oasiskv
