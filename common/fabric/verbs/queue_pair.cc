#include "common/fabric/verbs/queue_pair.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric::verbs {
namespace {

// Seven would mean "for ever" to some devices.
constexpr uint8_t kRetries = 6;
constexpr uint8_t kHopLimit = 64;

// The device's unit: it waits 4.096 us x 2^n for an acknowledgement, then sends again.
uint8_t TimeoutFor(Duration patience) {
  uint8_t n = 1;
  while (n < 31 && Duration(kRetries * (int64_t{4096} << n)) < patience) ++n;
  return n;
}

absl::Status Modify(ibv_qp* pair, ibv_qp_attr& attributes, int mask, absl::string_view to) {
  const int error = ::ibv_modify_qp(pair, &attributes, mask);
  if (error == 0) return absl::OkStatus();
  const bool unreachable = error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH;
  return MakeError(unreachable ? ErrorCode::kPeerLost : ErrorCode::kInternal,
                   absl::StrCat("taking a queue pair to ", to, ": ", std::strerror(error)));
}

}  // namespace

absl::StatusOr<QueuePair> CreateQueuePair(ibv_pd* domain, ibv_cq* completions, uint32_t depth) {
  ibv_qp_init_attr attributes{};
  attributes.send_cq = completions;
  attributes.recv_cq = completions;
  attributes.cap.max_send_wr = depth;
  attributes.cap.max_recv_wr = 1;
  attributes.cap.max_send_sge = 1;
  attributes.cap.max_recv_sge = 1;
  attributes.qp_type = IBV_QPT_RC;
  attributes.sq_sig_all = 0;
  QueuePair pair(::ibv_create_qp(domain, &attributes));
  if (pair == nullptr) {
    return MakeError(
        errno == ENOMEM ? ErrorCode::kCapacity : ErrorCode::kInternal,
        absl::StrCat(
            "making a queue pair of ", depth, " places: ", std::strerror(errno),
            errno == ENOMEM ? " (out of queue pairs, or of locked memory: see 'ulimit -l')" : ""));
  }
  return pair;
}

absl::Status ConnectQueuePair(ibv_qp* pair, const QueuePairPath& path) {
  ibv_qp_attr to{};
  to.qp_state = IBV_QPS_INIT;
  to.pkey_index = 0;
  to.port_num = path.port->number;
  to.qp_access_flags = path.remote_access;
  OASISKV_RETURN_IF_ERROR(Modify(
      pair, to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "INIT"));

  to = {};
  to.qp_state = IBV_QPS_RTR;
  to.path_mtu = std::min(path.port->attributes.active_mtu, MtuOf(path.peer.mtu_bytes));
  to.dest_qp_num = path.peer_pair.number;
  to.rq_psn = path.peer_pair.psn;
  to.max_dest_rd_atomic = static_cast<uint8_t>(path.max_rd_atomic);
  to.min_rnr_timer = 12;
  to.ah_attr.port_num = path.port->number;
  to.ah_attr.dlid = path.peer.lid;
  to.ah_attr.is_global = path.port->infiniband() ? 0 : 1;
  std::memcpy(to.ah_attr.grh.dgid.raw, path.peer.gid.data(), path.peer.gid.size());
  to.ah_attr.grh.sgid_index = static_cast<uint8_t>(path.own_gid_index);
  to.ah_attr.grh.hop_limit = kHopLimit;
  OASISKV_RETURN_IF_ERROR(Modify(pair, to,
                                 IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                     IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                                     IBV_QP_MIN_RNR_TIMER,
                                 absl::StrCat("RTR (towards ", GidText(path.peer.gid), ")")));

  to = {};
  to.qp_state = IBV_QPS_RTS;
  to.timeout = TimeoutFor(path.peer_patience);
  to.retry_cnt = kRetries;
  to.rnr_retry = kRetries;
  to.sq_psn = path.own_psn;
  to.max_rd_atomic = static_cast<uint8_t>(path.max_rd_atomic);
  return Modify(pair, to,
                IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
                "RTS");
}

void BreakQueuePair(ibv_qp* pair) {
  ibv_qp_attr to{};
  to.qp_state = IBV_QPS_ERR;
  // A device that cannot even do this is broken altogether; whoever breaks a pair destroys it next.
  ::ibv_modify_qp(pair, &to, IBV_QP_STATE);
}

uint32_t RandomPsn() {
  uint32_t psn = 0;
  if (::getrandom(&psn, sizeof(psn), 0) != sizeof(psn)) {
    psn = static_cast<uint32_t>(::time(nullptr));
  }
  return psn & 0xff'ffff;
}

}  // namespace oasiskv::fabric::verbs
