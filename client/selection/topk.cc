#include "client/selection/topk.h"

#include <algorithm>
#include <cstring>
#include <functional>

namespace oasiskv {
namespace {

// A number that grows with the score; 0 for NaN, below every number's.
uint32_t OrderOf(float score) {
  if (score != score) return 0;
  score += 0.0f;  // -0.0 becomes 0.0
  uint32_t bits;
  std::memcpy(&bits, &score, sizeof(bits));
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

}  // namespace

uint32_t TopK(const float* scores, uint32_t n, uint32_t k, int32_t* out,
              std::vector<uint64_t>& scratch) {
  const uint32_t found = std::min(n, k);
  // Score above, complement of the index below: one comparison settles score and tie.
  scratch.resize(n);
  for (uint32_t i = 0; i < n; ++i) {
    scratch[i] = (static_cast<uint64_t>(OrderOf(scores[i])) << 32) | (0xffffffffu - i);
  }
  if (found < n) {
    std::nth_element(scratch.begin(), scratch.begin() + found, scratch.end(), std::greater<>());
  }
  std::sort(scratch.begin(), scratch.begin() + found, std::greater<>());
  for (uint32_t i = 0; i < found; ++i) {
    out[i] = static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(scratch[i]));
  }
  std::fill(out + found, out + k, -1);
  return found;
}

uint32_t TopK(const float* scores, uint32_t n, uint32_t k, int32_t* out) {
  std::vector<uint64_t> scratch;
  return TopK(scores, n, k, out, scratch);
}

}  // namespace oasiskv
