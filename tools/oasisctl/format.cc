#include "tools/oasisctl/format.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace oasiskv::oasisctl {

std::string Size(uint64_t bytes) {
  const double value = static_cast<double>(bytes);
  if (bytes >= uint64_t{1} << 30) return absl::StrFormat("%.2f GiB", value / (1 << 30));
  if (bytes >= uint64_t{1} << 20) return absl::StrFormat("%.2f MiB", value / (1 << 20));
  if (bytes >= uint64_t{1} << 10) return absl::StrFormat("%.2f KiB", value / (1 << 10));
  return absl::StrCat(bytes, " B");
}

std::string Percent(uint64_t part, uint64_t whole) {
  if (whole == 0) return "-";
  return absl::StrFormat("%.1f %%", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string Time(int64_t milliseconds) {
  if (milliseconds < 1000) return absl::StrCat(milliseconds, " ms");
  const int64_t seconds = milliseconds / 1000;
  if (seconds < 60) return absl::StrFormat("%.1f s", static_cast<double>(milliseconds) / 1000);
  if (seconds < 3600) return absl::StrCat(seconds / 60, " m ", seconds % 60, " s");
  if (seconds < 86400) return absl::StrCat(seconds / 3600, " h ", seconds / 60 % 60, " m");
  return absl::StrCat(seconds / 86400, " d ", seconds / 3600 % 24, " h");
}

Table::Table(std::vector<std::string> header) { Row(std::move(header)); }

void Table::Row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

std::string Table::ToString() const {
  std::vector<size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line.append(widths[i] - row[i].size() + 2, ' ');
    }
    absl::StrAppend(&out, line, "\n");
  }
  return out;
}

}  // namespace oasiskv::oasisctl
