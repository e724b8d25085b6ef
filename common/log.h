// Log lines to stderr: "I 2026-01-31T12:00:00.123 lease: text". One line is one write.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace oasiskv {

enum class LogLevel : int { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3, kOff = 4 };

// Thread contract: all functions are safe for concurrent use.
void SetLogLevel(LogLevel level);  // kInfo at start
LogLevel GetLogLevel();
// `component` is the folder's name: "pool", "lease", "shm", "ucx", "client", ...
void Log(LogLevel level, absl::string_view component, absl::string_view text);

inline void LogDebug(absl::string_view c, absl::string_view t) { Log(LogLevel::kDebug, c, t); }
inline void LogInfo(absl::string_view c, absl::string_view t) { Log(LogLevel::kInfo, c, t); }
inline void LogWarning(absl::string_view c, absl::string_view t) { Log(LogLevel::kWarning, c, t); }
inline void LogError(absl::string_view c, absl::string_view t) { Log(LogLevel::kError, c, t); }

// Thread contract: safe for concurrent use.
//
// Lets one line per interval through, so that a peer cannot flood the log:
//   if (gate.Pass()) LogWarning(...);
class LogGate {
 public:
  explicit LogGate(std::chrono::nanoseconds interval = std::chrono::seconds(10))
      : interval_(interval.count()) {}
  bool Pass();
  // Lines held back before the one that passed last, for that line to report.
  uint64_t suppressed() const { return reported_.load(std::memory_order_relaxed); }

 private:
  const int64_t interval_;
  std::atomic<int64_t> next_{0};
  std::atomic<uint64_t> held_back_{0}, reported_{0};
};

}  // namespace oasiskv
