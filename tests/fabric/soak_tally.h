// What the soak's clients counted, in memory that they share with the test: nothing is lost with a
// client that is killed.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "oasiskv/error.h"

namespace oasiskv::testing {

// A call that has not returned so long after its deadline hangs. Far more than any pause that the
// test makes, and than an emulated machine on a busy one needs.
inline constexpr std::chrono::seconds kSlack{15};

// Thread contract: safe for concurrent use, by several processes.
//
// Begins as zeros in shared memory; has no pointers.
struct Tally {
  static constexpr int kCodes = 128;
  static constexpr int kCalls = 32;
  using Codes = std::array<std::atomic<uint64_t>, kCodes>;

  Codes reads, attaches, opens, writes, releases;
  std::atomic<uint64_t> entries_checked, bytes_checked, summaries_checked, buffers_watched;
  std::atomic<uint64_t> reconnects, stale_reads, renewals, grants_lost;
  // How long the test stopped each client for, which is not the call's fault.
  std::array<std::atomic<int64_t>, kCalls> stopped_ns;
  std::atomic<int64_t> worst_fetch_ms, worst_call_ms;  // after the deadline
  std::atomic<int64_t> most_descriptors, most_threads, most_kib;
  std::atomic<uint64_t> faults;
  std::array<char, 2048> first_fault;

  // Calls that are under way: when each has to have ended by, 0 for none.
  struct Call {
    std::atomic<int64_t> end_by_ns;
    std::atomic<pid_t> process;
    std::array<char, 24> what;
  };
  std::array<Call, kCalls> calls;

  static void Count(Codes& codes, const absl::Status& status) {
    const int code = status.ok() ? 0 : static_cast<int>(ErrorCodeOf(status));
    codes[code >= 0 && code < kCodes ? code : kCodes - 1].fetch_add(1);
  }
  static void Raise(std::atomic<int64_t>& most, int64_t value) {
    for (int64_t now = most; value > now && !most.compare_exchange_weak(now, value);) {
    }
  }
  // The first one's words are kept.
  void Fault(const std::string& what) {
    if (faults.fetch_add(1) != 0) return;
    std::strncpy(first_fault.data(), what.c_str(), first_fault.size() - 1);
  }
};

}  // namespace oasiskv::testing
