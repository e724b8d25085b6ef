#include "common/log.h"

#include <unistd.h>

#include <string>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace oasiskv {
namespace {

std::atomic<int> g_level{static_cast<int>(LogLevel::kInfo)};

}  // namespace

void SetLogLevel(LogLevel level) { g_level.store(static_cast<int>(level)); }

LogLevel GetLogLevel() { return static_cast<LogLevel>(g_level.load(std::memory_order_relaxed)); }

void Log(LogLevel level, absl::string_view component, absl::string_view text) {
  if (static_cast<int>(level) < g_level.load(std::memory_order_relaxed)) return;
  static constexpr char kLetters[] = "DIWE";
  std::string line = absl::StrFormat(
      "%c %s %s: %s\n", kLetters[static_cast<int>(level)],
      absl::FormatTime("%Y-%m-%dT%H:%M:%E3S", absl::Now(), absl::LocalTimeZone()), component, text);
  // Names in it come from clients: they must not be able to begin a new line.
  for (size_t i = 0; i + 1 < line.size(); ++i) {
    if (static_cast<unsigned char>(line[i]) < ' ' || line[i] == '\x7f') line[i] = '?';
  }
  // A log line that cannot be written has nowhere to be reported.
  [[maybe_unused]] ssize_t ignored = ::write(STDERR_FILENO, line.data(), line.size());
}

bool LogGate::Pass() {
  const int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
  int64_t next = next_.load(std::memory_order_relaxed);
  if (now >= next && next_.compare_exchange_strong(next, now + interval_)) {
    reported_.store(held_back_.exchange(0, std::memory_order_relaxed), std::memory_order_relaxed);
    return true;
  }
  held_back_.fetch_add(1, std::memory_order_relaxed);
  return false;
}

}  // namespace oasiskv
