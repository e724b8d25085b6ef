// What the core should hold, kept in the plainest way: the ground truth of the core's fuzz test.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "oasiskv/error.h"
#include "server/core/kv_core.h"

namespace oasiskv::server {

// Thread contract: used by one thread.
//
// Every holder holds a prefix of its sequence's blocks, so what a sequence costs is its longest
// holder.
struct CoreModel {
  enum class End { kLive, kReleased, kSealed, kExpired, kAborted };

  struct Seq {
    uint64_t id = 0;
    int name = 0, geometry = 0;
    SequenceState state = SequenceState::kOpen;
    uint32_t blocks = 0;
    std::set<std::pair<uint32_t, uint32_t>> committed;  // (block, layer), while open
    std::map<std::tuple<uint32_t, uint32_t, uint32_t>, uint64_t> written;  // (block, layer, head)
    // The daemon was told of the write. The summaries' are in it as head 2.
    std::set<std::tuple<uint32_t, uint32_t, uint32_t>> noted;
    bool watched = false;  // its writer's fabric tells of writes
    std::vector<FrameAddress> frames;
    Duration alone_since{0};  // sealed and without a reader
    bool listed() const { return state != SequenceState::kAborted; }
    bool live() const { return state == SequenceState::kOpen || state == SequenceState::kSealed; }
  };
  struct Grant {
    wire::Grant info;
    bool writer = false;
    size_t seq = 0;  // index
    uint32_t frames = 0, first_head = 0, head_count = 0;
    Duration expires{0};
    uint64_t connection = 0;
    bool fenced = true;
    uint32_t sealed_as = 0;  // the blocks of its seal
    End end = End::kLive;
    size_t end_order = 0;
    int pins = 0;
    bool quarantined() const { return end != End::kLive && !fenced && frames > 0; }
    bool holds() const { return end == End::kLive || quarantined() || pins > 0; }
  };

  size_t max_grants = 0;
  Duration unattended_ttl{0};
  std::vector<Seq> seqs;
  std::vector<Grant> grants;
  std::set<uint64_t> closed;
  Duration served{0};
  size_t ended = 0;
  CoreCounters counters;

  Seq* Live(int name) {
    for (Seq& s : seqs) {
      if (s.name == name && s.live()) return &s;
    }
    return nullptr;
  }
  size_t Listed() const {
    return static_cast<size_t>(
        std::count_if(seqs.begin(), seqs.end(), [](const Seq& s) { return s.listed(); }));
  }
  size_t LiveGrants() const {
    return static_cast<size_t>(std::count_if(grants.begin(), grants.end(),
                                             [](const Grant& g) { return g.end == End::kLive; }));
  }
  uint32_t Readers(size_t seq) const {
    uint32_t n = 0;
    for (const Grant& g : grants) n += g.seq == seq && !g.writer && g.end == End::kLive;
    return n;
  }
  // Why a call with this grant is refused; kUnspecified when it is live.
  ErrorCode Refusal(const Grant& g, bool writer_call) const {
    if (g.end == End::kLive) return ErrorCode::kUnspecified;
    if (ended - g.end_order > max_grants) return ErrorCode::kNotFound;  // forgotten
    if (g.end == End::kExpired) return ErrorCode::kLeaseExpired;
    if (g.end == End::kSealed && writer_call) return ErrorCode::kWrongState;
    return ErrorCode::kStale;
  }
  // Blocks of `seq` that are held, and those that nothing but a quarantine holds.
  std::pair<uint32_t, uint32_t> Held(size_t index) const {
    const Seq& s = seqs[index];
    uint32_t firm = s.live() ? s.blocks : 0, quarantined = 0;
    for (const Grant& g : grants) {
      if (g.seq != index || !g.holds()) continue;
      (g.quarantined() ? quarantined : firm) =
          std::max(g.quarantined() ? quarantined : firm, g.frames);
    }
    return {std::max(firm, quarantined), quarantined > firm ? quarantined - firm : 0};
  }

  void EndGrant(Grant& g, End end) {
    g.end = end;
    g.end_order = ended++;
    ++(end == End::kExpired   ? counters.grants_expired
       : end == End::kAborted ? counters.grants_revoked
                              : counters.grants_released);
    Seq& s = seqs[g.seq];
    if (s.state == SequenceState::kSealed && Readers(g.seq) == 0) s.alone_since = served;
    if (s.state == SequenceState::kReleased && Readers(g.seq) == 0) {
      s.state = SequenceState::kAborted;  // gone
    }
  }
  uint32_t AbortSeq(size_t index) {
    seqs[index].state = SequenceState::kAborted;
    uint32_t revoked = 0;
    for (Grant& g : grants) {
      if (g.seq != index || g.end != End::kLive) continue;
      EndGrant(g, End::kAborted);
      ++revoked;
    }
    return revoked;
  }
  void LoseGrant(Grant& g, End end) {
    EndGrant(g, end);
    if (!g.writer) return;
    ++(end == End::kExpired ? counters.sequences_expired : counters.sequences_aborted);
    AbortSeq(g.seq);
  }
  void Tick(Duration passed) {
    served += std::min<Duration>(passed, KvCore::kMaxTick);
    ExpireGrants();
    for (size_t i = 0; i < seqs.size(); ++i) {
      if (seqs[i].state != SequenceState::kSealed || Readers(i) > 0) continue;
      if (unattended_ttl == Duration(0) || seqs[i].alone_since + unattended_ttl > served) continue;
      seqs[i].state = SequenceState::kAborted;  // gone
      ++counters.sequences_unattended;
    }
  }
  void ExpireGrants() {
    while (true) {
      Grant* first = nullptr;
      for (Grant& g : grants) {
        if (g.end != End::kLive || g.expires > served) continue;
        if (first == nullptr || g.expires < first->expires) first = &g;
      }
      if (first == nullptr) return;
      LoseGrant(*first, End::kExpired);
    }
  }
};

}  // namespace oasiskv::server
