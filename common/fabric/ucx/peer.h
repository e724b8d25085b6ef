// One client of the serving half: what it waits for, and how replies go out to it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/fabric/endpoint.h"
#include "common/fabric/ucx/worker.h"

namespace oasiskv::fabric::ucx {

// Thread contract: safe for concurrent use; the members of EndpointStats.
struct ServerCounters {
  std::atomic<uint64_t> connections{0}, connections_total{0}, connections_refused{0};
  std::atomic<uint64_t> requests{0}, requests_refused{0}, malformed{0};
  std::atomic<uint64_t> bytes_read{0}, bytes_written{0};
};

// A read that was authorized. It holds the pin until the last of its Data messages has left.
struct ReadJob {
  uint64_t request = 0;
  GrantId grant;
  PinnedRanges ranges;
  uint64_t bytes = 0;      // of all ranges
  size_t range = 0;        // next byte to send: in this range,
  uint64_t offset = 0;     // at this offset of it,
  uint64_t position = 0;   // at this position of the whole
  uint32_t in_flight = 0;  // Data messages not yet sent
  bool posted = false;     // all of it was handed to UCX
};

// Thread contract: used by the server's thread only.
//
// Replies go out in the order of the requests, kMaxPosted messages at a time; a trailer follows its
// data. Whenever there is something to do for a peer it stands in `ready`. It must outlive the
// messages it sent: see idle().
class Peer {
 public:
  // All references must outlive the peer.
  Peer(Worker& worker, GrantAuthority& authority, ServerCounters& counters,
       std::vector<Peer*>& ready, ucp_ep* endpoint, std::string address, MonotonicTime now);

  ucp_ep* endpoint() const { return endpoint_; }
  const std::string& address() const { return address_; }
  MonotonicTime connected_at() const { return connected_at_; }
  bool greeted() const { return greeted_; }
  void set_greeted(Lane lane) {
    greeted_ = true;
    lane_ = std::move(lane);
  }
  // The one that UCX chose at this end, once greeted.
  const Lane& lane() const { return lane_; }
  // TCP looks after itself.
  bool pinged() const { return greeted_ && lane_.transport != "tcp"; }

  void Enqueue(std::unique_ptr<ReadJob> job);
  void SendHelloReply(const absl::Status& status, uint64_t incarnation);
  void SendPing();
  void SendTrailer(uint64_t request, const absl::Status& status, uint64_t word);
  // Hands to UCX what may go now. True when the same call would do more.
  bool Pump();

  // The connection failed, or its client breaks the protocol's limits: `why` is for the log.
  void Break(absl::string_view why);
  bool broken() const { return !broken_why_.empty(); }
  const std::string& broken_why() const { return broken_why_; }
  // Drops what was not sent, with its pins.
  void DropJobs();

  size_t open_requests() const { return jobs_.size() + finished_.size(); }
  bool idle() const { return in_flight_ == 0; }
  // True when something has been on its way since before `since` and nothing has left meanwhile.
  bool StuckSince(MonotonicTime since) const { return in_flight_ > 0 && last_sent_ < since; }
  void MarkReady();
  // Called by the server when it takes the peer out of `ready`.
  void TakenFromReady() { in_ready_ = false; }

 private:
  class DataMessage;
  class SmallMessage;

  void Sent(bool ok);
  void DataSent(const std::shared_ptr<ReadJob>& job, bool ok);
  void PostData(const std::shared_ptr<ReadJob>& job);
  void PostWhole();
  void Post(std::unique_ptr<Message> message);

  Worker& worker_;
  GrantAuthority& authority_;
  ServerCounters& counters_;
  std::vector<Peer*>& ready_;
  ucp_ep* const endpoint_;
  const std::string address_;
  const MonotonicTime connected_at_;

  bool greeted_ = false;
  Lane lane_;
  bool in_ready_ = false;
  std::string broken_why_;
  std::deque<std::shared_ptr<ReadJob>> jobs_;      // not all posted yet
  std::deque<std::shared_ptr<ReadJob>> finished_;  // all sent; the trailer is due
  size_t in_flight_ = 0;                           // messages of any kind
  MonotonicTime last_sent_;
};

}  // namespace oasiskv::fabric::ucx
