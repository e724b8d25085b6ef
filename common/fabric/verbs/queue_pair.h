// Reliable queue pairs: made, connected, taken down.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/fabric/verbs/handles.h"
#include "common/fabric/verbs/hello.h"
#include "common/fabric/verbs/port.h"

namespace oasiskv::fabric::verbs {

// CAPACITY when the device has no more queue pairs.
absl::StatusOr<QueuePair> CreateQueuePair(ibv_pd* domain, ibv_cq* completions, uint32_t depth);

struct QueuePairPath {
  const Port* port = nullptr;
  uint32_t own_gid_index = 0;
  uint32_t own_psn = 0;
  PortAddress peer;
  QueuePairAddress peer_pair;
  uint32_t max_rd_atomic = 1;
  Duration peer_patience = std::chrono::milliseconds(500);  // until a silent peer counts as gone
  unsigned remote_access = 0;  // IBV_ACCESS_REMOTE_*: what the peer may do on this queue pair
};
// Takes a new queue pair until it can send. PEER_LOST when the network does not resolve the peer's
// address.
absl::Status ConnectQueuePair(ibv_qp* pair, const QueuePairPath& path);

// What is queued on it comes back as flushed; what the peer sends is not answered any more.
void BreakQueuePair(ibv_qp* pair);

// For a first packet: not predictable, so that packets of an earlier connection with the same
// numbers do not fit.
uint32_t RandomPsn();

}  // namespace oasiskv::fabric::verbs
