#include "common/byte_size.h"

#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace oasiskv {
namespace {

struct Unit {
  absl::string_view suffix;
  int shift;
};
constexpr Unit kUnits[] = {{"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}, {"B", 0}, {"", 0}};

}  // namespace

bool AbslParseFlag(absl::string_view text, ByteSize* size, std::string* error) {
  const size_t end = text.find_first_not_of("0123456789");
  const absl::string_view digits = text.substr(0, end);
  const absl::string_view suffix = end == text.npos ? absl::string_view() : text.substr(end);
  uint64_t number = 0;
  if (!digits.empty() && absl::SimpleAtoi(digits, &number)) {
    for (const Unit& unit : kUnits) {
      if (suffix != unit.suffix) continue;
      if (number > (std::numeric_limits<uint64_t>::max() >> unit.shift)) break;
      size->bytes = number << unit.shift;
      return true;
    }
  }
  *error =
      absl::StrCat("'", text, "' is not a size; write bytes or a number with KiB, MiB, GiB or TiB");
  return false;
}

std::string AbslUnparseFlag(ByteSize size) {
  if (size.bytes == 0) return "0";
  for (const Unit& unit : kUnits) {
    if (unit.shift != 0 && size.bytes % (uint64_t{1} << unit.shift) == 0) {
      return absl::StrCat(size.bytes >> unit.shift, unit.suffix);
    }
  }
  return absl::StrCat(size.bytes);
}

}  // namespace oasiskv
