// What calls by name answered, for their repeats.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/mutex.h"
#include "oasiskv/ids.h"

namespace oasiskv::server {

// Thread contract: safe for concurrent use.
//
// A repeat of Release or Abort must not end the next sequence of the same name, so the answer of
// the first is kept: of the last kRemembered calls, which is minutes at any rate that clients reach
// by name. A repeat that comes while the first is running waits for it.
class RecentCalls {
 public:
  static constexpr size_t kRemembered = 65536;
  using Counts = std::pair<uint32_t, uint32_t>;

  // The answer of the first call with that token, or what `call` gives; errors are not kept, since
  // such a call changed nothing. A zero token is never a repeat.
  absl::Status Once(CallToken token, Counts& counts,
                    const std::function<absl::Status(Counts&)>& call) {
    if (token == CallToken()) return call(counts);
    {
      MutexLock lock(mutex_);
      for (auto it = calls_.find(token); it != calls_.end(); it = calls_.find(token)) {
        if (it->second.has_value()) {
          counts = *it->second;
          return absl::OkStatus();
        }
        ended_.Wait(mutex_);
      }
      calls_[token] = std::nullopt;
    }
    absl::Status status = call(counts);
    MutexLock lock(mutex_);
    if (status.ok()) {
      calls_[token] = counts;
      order_.push_back(token);
      if (order_.size() > kRemembered) {
        calls_.erase(order_.front());
        order_.pop_front();
      }
    } else {
      calls_.erase(token);
    }
    ended_.NotifyAll();
    return status;
  }

 private:
  Mutex mutex_;
  CondVar ended_;
  absl::flat_hash_map<CallToken, std::optional<Counts>> calls_ ABSL_GUARDED_BY(mutex_);
  std::deque<CallToken> order_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace oasiskv::server
