// Numbers and tables for people.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace oasiskv::oasisctl {

// "512 B", "3.50 MiB", "1.20 GiB".
std::string Size(uint64_t bytes);
// "12.3 %" of `whole`; "-" when that is 0.
std::string Percent(uint64_t part, uint64_t whole);
// "850 ms", "12.3 s", "5 m 10 s", "3 h 20 m", "2 d 4 h".
std::string Time(int64_t milliseconds);

// Thread contract: not safe for concurrent use.
//
// Columns as wide as their widest cell, aligned to the left.
class Table {
 public:
  explicit Table(std::vector<std::string> header);
  void Row(std::vector<std::string> cells);
  std::string ToString() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace oasiskv::oasisctl
