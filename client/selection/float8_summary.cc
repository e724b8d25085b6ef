#include <array>
#include <cstring>

#include "client/selection/float8.h"
#include "client/selection/summary.h"

namespace oasiskv {
namespace {

// The codes of all numbers of 16 bits, rounded down and up. The numbers that a model's keys consist
// of lie in a few KiB of it.
using Codes = std::array<std::array<uint8_t, 65536>, 2>;

template <typename Format>
const Codes& CodesOf() {
  static const Codes codes = [] {
    Codes out;
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      out[0][bits] = static_cast<uint8_t>(Format::ToFloat8(bits, false));
      out[1][bits] = static_cast<uint8_t>(Format::ToFloat8(bits, true));
    }
    return out;
  }();
  return codes;
}

// take(i, code) for each number i of a summary.
template <typename Format, typename Take>
void EachOf16Bits(uint32_t head_dim, const std::byte* summary, const Take& take) {
  const Codes& codes = CodesOf<Format>();
  for (uint32_t i = 0; i < 2 * head_dim; ++i) {
    uint16_t bits;
    std::memcpy(&bits, summary + size_t{i} * sizeof(bits), sizeof(bits));
    take(i, codes[i < head_dim ? 0 : 1][bits]);
  }
}

template <typename Take>
void EachCode(ElementType type, uint32_t head_dim, const std::byte* summary, const Take& take) {
  switch (type) {
    case ElementType::kFloat16:
      return EachOf16Bits<Float16Format>(head_dim, summary, take);
    case ElementType::kBFloat16:
      return EachOf16Bits<BFloat16Format>(head_dim, summary, take);
    case ElementType::kFloat32:
    case ElementType::kUnspecified:
      break;
  }
  for (uint32_t i = 0; i < 2 * head_dim; ++i) {
    uint32_t bits;
    std::memcpy(&bits, summary + size_t{i} * sizeof(bits), sizeof(bits));
    take(i, static_cast<uint8_t>(Float32Format::ToFloat8(bits, i >= head_dim)));
  }
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

using Elements = std::array<uint32_t, 256>;
const Elements& ElementsOf(ElementType type) {
  static const std::array<Elements, 3> elements = [] {
    std::array<Elements, 3> out;
    for (size_t t = 0; t < out.size(); ++t) {
      for (uint32_t code = 0; code < 256; ++code) {
        out[t][code] = ElementBits(static_cast<ElementType>(t + 1), static_cast<uint8_t>(code));
      }
    }
    return out;
  }();
  return elements[static_cast<size_t>(type) - 1];
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
  EachCode(type, head_dim, summary,
           [&](uint32_t i, uint8_t code) { float8[i] = static_cast<std::byte>(code); });
}

void RoundSummaryToFloat8(ElementType type, uint32_t head_dim, std::byte* summary) {
  const Elements& elements = ElementsOf(type);
  const uint32_t bytes = ElementBytes(type);
  EachCode(type, head_dim, summary, [&](uint32_t i, uint8_t code) {
    std::memcpy(summary + size_t{i} * bytes, &elements[code], bytes);
  });
}

}  // namespace oasiskv
