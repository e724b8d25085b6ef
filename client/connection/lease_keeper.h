// The client's one background thread: renews leases, gives grants back, and notices dead sessions.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "client/connection/grant_state.h"
#include "client/connection/session.h"
#include "common/clock.h"
#include "common/mutex.h"

namespace oasiskv::client {

enum class GrantRole { kReader, kWriter };

// Thread contract: safe for concurrent use; the destructor waits for the thread (bounded by
// kFarewell and one call).
//
// Renews all grants of one session that ask for the same lease in one call, at a third of the
// lease. A renewal that fails is tried again soon; until one succeeds the grants are suspended by
// their own clock (GrantState). A grant that the daemon reports lost is lost here, and a writer's
// is fenced, so that the daemon may reuse its memory. Goodbyes are sent many in a call, and once
// only: a lost goodbye is mended by the lease's end.
class LeaseKeeper {
 public:
  // `on_tick` runs on the keeper's thread about twice a second; what it refers to must outlive the
  // keeper.
  LeaseKeeper(Duration rpc_timeout, std::function<void()> on_tick);
  ~LeaseKeeper();

  // Renews the grant from now on, by calls that ask for `asked_lease`.
  std::shared_ptr<GrantState> Hold(std::shared_ptr<Session> session, const GivenGrant& given,
                                   Duration asked_lease, GrantRole role);
  // Ends the renewals; the grant is not given back (a sealed sequence has none, say).
  void Drop(const GrantState& grant);
  // Ends the renewals and gives the grant back soon. A writer's grant that goes before the seal
  // takes its sequence with it.
  void ReleaseLater(std::shared_ptr<Session> session, std::shared_ptr<GrantState> grant);

  uint64_t renewals() const { return renewals_.load(std::memory_order_relaxed); }
  uint64_t grants_lost() const { return grants_lost_.load(std::memory_order_relaxed); }

 private:
  struct Held {
    std::shared_ptr<Session> session;
    std::shared_ptr<GrantState> grant;
    GrantRole role = GrantRole::kReader;
    MonotonicTime next;  // when to renew
    MonotonicTime last_try;
  };
  struct Farewell {
    std::shared_ptr<Session> session;
    std::shared_ptr<GrantState> grant;
  };
  using Group = std::vector<Held>;

  void Run();
  // Copies every group with a member that is due; lowers `next` to when one will be. `holds`: Hold
  // calls seen.
  std::vector<Group> TakeDue(MonotonicTime now, MonotonicTime* next, uint64_t* holds);
  void Renew(const Group& group);
  void Lose(const Held& held, ErrorCode reason, const std::string& message);
  void SendFarewells(std::span<const Farewell> farewells, Duration limit);
  void Reschedule(const Group& group, MonotonicTime next);

  const Duration rpc_timeout_;
  const std::function<void()> on_tick_;
  std::atomic<uint64_t> renewals_{0}, grants_lost_{0};

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t holds_ ABSL_GUARDED_BY(mutex_) = 0;  // Hold calls so far
  std::unordered_map<const GrantState*, Held> held_ ABSL_GUARDED_BY(mutex_);
  std::vector<Farewell> farewells_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // last: it uses everything above
};

}  // namespace oasiskv::client
