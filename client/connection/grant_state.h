// What a holder knows of its grant: the lease by its own clock, and whether the grant is lost.
#pragma once

#include <atomic>
#include <string>

#include "absl/status/status.h"
#include "client/connection/control.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "oasiskv/error.h"

namespace oasiskv::client {

// Thread contract: safe for concurrent use.
//
// The lease ends `lease` after the moment the granting or renewing call was *sent*, less a margin
// for clocks that run at different rates: the daemon began to count later, so the holder always
// stops first (rule 3 of server/lease/README.md). A grant whose lease has ended here is suspended, not
// lost: a daemon that was stopped expires nobody for it, and the first renewal that succeeds makes
// the grant valid again. What the daemon has declared lost stays lost.
class GrantState {
 public:
  GrantState(GrantKey key, Duration asked_lease, MonotonicTime sent, Duration lease)
      : key_(key), asked_lease_(asked_lease) {
    Prolong(sent, lease);
  }

  GrantKey key() const { return key_; }
  // What renewals ask for; 0: the daemon's default.
  Duration asked_lease() const { return asked_lease_; }
  Duration lease() const { return Duration(lease_ns_.load(std::memory_order_acquire)); }
  MonotonicTime lease_end() const {
    return MonotonicTime(Duration(lease_end_ns_.load(std::memory_order_acquire)));
  }

  void Prolong(MonotonicTime sent, Duration lease) {
    lease_ns_.store(lease.count(), std::memory_order_release);
    lease_end_ns_.store((sent.time_since_epoch() + lease - lease / kMarginDivisor).count(),
                        std::memory_order_release);
  }

  // The first reason stays.
  void Lose(ErrorCode reason, const std::string& message) {
    MutexLock lock(mutex_);
    if (!lost_status_.ok()) return;
    lost_status_ = MakeError(reason, message);
    lost_.store(true, std::memory_order_release);
  }
  bool lost() const { return lost_.load(std::memory_order_acquire); }

  // OK while reads under the grant may be started or counted; LEASE_EXPIRED while it is suspended;
  // the reason when lost.
  absl::Status Check(MonotonicTime now) const {
    if (lost()) {
      MutexLock lock(mutex_);
      return lost_status_;
    }
    if (now >= lease_end()) {
      return MakeError(ErrorCode::kLeaseExpired,
                       "the lease ended by this process's clock and no renewal has succeeded yet; "
                       "wait for Health() to be OK or attach again");
    }
    return absl::OkStatus();
  }

 private:
  static constexpr int kMarginDivisor = 50;

  const GrantKey key_;
  const Duration asked_lease_;
  std::atomic<int64_t> lease_ns_{0}, lease_end_ns_{0};
  std::atomic<bool> lost_{false};
  mutable Mutex mutex_;
  absl::Status lost_status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace oasiskv::client
