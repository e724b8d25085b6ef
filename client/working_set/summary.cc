#include "client/working_set/summary.h"

#include <cmath>
#include <cstring>

#include "client/working_set/element.h"

namespace oasiskv {

void SummariseKeys(ElementType type, uint32_t head_dim, const std::byte* keys, int64_t key_stride,
                   uint32_t tokens, std::byte* summary) {
  const uint32_t width = ElementBytes(type);
  for (uint32_t d = 0; d < head_dim; ++d) {
    const std::byte* low = keys + uint64_t{d} * width;
    const std::byte* high = low;
    float low_value = LoadElement(type, low, 0);
    float high_value = low_value;
    for (uint32_t t = 1; t < tokens; ++t) {
      const std::byte* at = keys + int64_t{t} * key_stride + uint64_t{d} * width;
      const float value = LoadElement(type, at, 0);
      if (value < low_value || std::isnan(low_value)) {
        low = at;
        low_value = value;
      }
      if (value > high_value || std::isnan(high_value)) {
        high = at;
        high_value = value;
      }
    }
    std::memcpy(summary + uint64_t{d} * width, low, width);
    std::memcpy(summary + (uint64_t{head_dim} + d) * width, high, width);
  }
}

}  // namespace oasiskv
