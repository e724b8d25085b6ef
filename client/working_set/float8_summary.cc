#include "client/working_set/float8_summary.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "client/working_set/float8.h"

namespace oasiskv {
namespace {

constexpr uint32_t kChunk = 256;  // elements at a time

// A loop that is vectorised: numbers of one width in, E4M3 out.
template <typename Format, typename Bits>
[[gnu::always_inline]] inline void Convert(const std::byte* from, uint32_t count, bool up,
                                           std::byte* to) {
  Bits in[kChunk];
  uint8_t out[kChunk];
  for (uint32_t first = 0; first < count; first += kChunk) {
    const uint32_t n = std::min(kChunk, count - first);
    std::memcpy(in, from + size_t{first} * sizeof(Bits), n * sizeof(Bits));
    for (uint32_t i = 0; i < n; ++i) out[i] = static_cast<uint8_t>(Format::ToFloat8(in[i], up));
    std::memcpy(to + first, out, n);
  }
}

[[gnu::always_inline]] inline void ConvertSummary(ElementType type, uint32_t head_dim,
                                                  const std::byte* summary, std::byte* float8) {
  const std::byte* const max = summary + size_t{head_dim} * ElementBytes(type);
  switch (type) {
    case ElementType::kFloat16:
      Convert<Float16Format, uint16_t>(summary, head_dim, false, float8);
      return Convert<Float16Format, uint16_t>(max, head_dim, true, float8 + head_dim);
    case ElementType::kBFloat16:
      Convert<BFloat16Format, uint16_t>(summary, head_dim, false, float8);
      return Convert<BFloat16Format, uint16_t>(max, head_dim, true, float8 + head_dim);
    case ElementType::kFloat32:
    case ElementType::kUnspecified:
      Convert<Float32Format, uint32_t>(summary, head_dim, false, float8);
      return Convert<Float32Format, uint32_t>(max, head_dim, true, float8 + head_dim);
  }
}

void ConvertPlain(ElementType type, uint32_t head_dim, const std::byte* summary,
                  std::byte* float8) {
  ConvertSummary(type, head_dim, summary, float8);
}

#if defined(__x86_64__)
// It has shifts by a number for each element.
__attribute__((target("avx2"))) void ConvertAvx2(ElementType type, uint32_t head_dim,
                                                 const std::byte* summary, std::byte* float8) {
  ConvertSummary(type, head_dim, summary, float8);
}
#endif

auto FastestConvert() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return ConvertAvx2;
#endif
  return ConvertPlain;
}

// An E4M3 number in `type`: there it is a normal one, zero or NaN.
uint32_t ElementBits(ElementType type, uint8_t code) {
  const float value = Float8ToFloat(code);
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if (type == ElementType::kBFloat16) return bits >> 16;
  if (type != ElementType::kFloat16) return bits;
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t field = bits >> 23 & 0xff;
  if (field == 0) return sign;
  if (field == 0xff) return 0x7e00;
  return sign | (field - 112) << 10 | (bits >> 13 & 0x3ff);
}

using Table = std::array<uint32_t, 256>;
const Table& ElementTable(ElementType type) {
  static const std::array<Table, 3> tables = [] {
    std::array<Table, 3> out;
    for (size_t t = 0; t < out.size(); ++t) {
      for (uint32_t code = 0; code < 256; ++code) {
        out[t][code] = ElementBits(static_cast<ElementType>(t + 1), static_cast<uint8_t>(code));
      }
    }
    return out;
  }();
  return tables[static_cast<size_t>(type) - 1];
}

}  // namespace

float Float8ToFloat(uint8_t code) {
  const uint32_t magnitude = code & 0x7f, mantissa = code & 7, field = magnitude >> 3;
  uint32_t bits;
  if (magnitude == kFloat8Nan) {
    bits = 0x7fc00000;
  } else if (field != 0) {
    bits = (field + 120) << 23 | mantissa << 20;
  } else {
    const float value = static_cast<float>(mantissa) * 0x1p-9f;
    std::memcpy(&bits, &value, sizeof(bits));
  }
  bits |= static_cast<uint32_t>(code & 0x80) << 24;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

void SummaryToFloat8(ElementType type, uint32_t head_dim, const std::byte* summary,
                     std::byte* float8) {
  static const auto convert = FastestConvert();
  convert(type, head_dim, summary, float8);
}

void RoundSummaryToFloat8(ElementType type, uint32_t head_dim, std::byte* summary) {
  const Table& table = ElementTable(type);
  const uint32_t bytes = ElementBytes(type);
  std::byte codes[kChunk];
  // Halves apart, so that a chunk of each is whole.
  for (uint32_t first = 0; first < head_dim; first += kChunk / 2) {
    const uint32_t n = std::min(kChunk / 2, head_dim - first);
    std::byte* const min = summary + size_t{first} * bytes;
    std::byte* const max = min + size_t{head_dim} * bytes;
    std::byte both[kChunk * sizeof(float)];
    std::memcpy(both, min, n * bytes);
    std::memcpy(both + n * bytes, max, n * bytes);
    SummaryToFloat8(type, n, both, codes);
    for (uint32_t i = 0; i < n; ++i) {
      std::memcpy(min + i * bytes, &table[static_cast<uint8_t>(codes[i])], bytes);
      std::memcpy(max + i * bytes, &table[static_cast<uint8_t>(codes[n + i])], bytes);
    }
  }
}

}  // namespace oasiskv
