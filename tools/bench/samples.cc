#include "tools/bench/samples.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace oasiskv::bench {

double Quantile(std::vector<double>& samples, double q) {
  if (samples.empty()) return 0;
  const auto rank = static_cast<size_t>(std::ceil(q * static_cast<double>(samples.size())));
  const size_t at = std::min(samples.size() - 1, rank == 0 ? 0 : rank - 1);
  std::nth_element(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(at),
                   samples.end());
  return samples[at];
}

Spread SpreadOf(std::vector<double> samples) {
  const double low = Quantile(samples, 0.25), high = Quantile(samples, 0.75);
  return {Quantile(samples, 0.5), (high - low) / 2};
}

double CpuSeconds(int pid) {
  if (pid == 0) {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](timeval t) {
      return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
  }
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string line;
  if (!std::getline(file, line)) return 0;
  // Fields 14 and 15, counted after the parenthesised name, which may hold blanks (proc(5)).
  std::istringstream rest(line.substr(line.rfind(')') + 2));
  std::string field;
  for (int i = 3; i < 14; ++i) rest >> field;
  double user = 0, system = 0;
  rest >> user >> system;
  return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace oasiskv::bench
