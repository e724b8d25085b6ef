// Latencies and rates of a run, and what is reported of them.
#pragma once

#include <chrono>
#include <cstddef>
#include <vector>

namespace oasiskv::bench {

// The q-th quantile (0..1) by the nearest rank; 0 for no samples. Reorders `samples`.
double Quantile(std::vector<double>& samples, double q);

// Median and half the distance between the quartiles: a spread that one disturbed round does not
// move.
struct Spread {
  double median = 0;
  double half_iqr = 0;
};
Spread SpreadOf(std::vector<double> samples);

// CPU seconds (user + system) a process has used; of this one with pid 0. 0 when it is gone.
double CpuSeconds(int pid);

inline double Seconds(std::chrono::nanoseconds d) {
  return std::chrono::duration<double>(d).count();
}

}  // namespace oasiskv::bench
