// What must hold after every step of a program.
#include <iterator>
#include <map>

#include "tests/fuzz/core_program.h"

namespace oasiskv::server {

using End = CoreModel::End;

void Program::CheckInvariants() {
  const CapacityInfo c = core_->Capacity();
  uint64_t used = 0, quarantined = 0, open = 0, sealed = 0, released = 0, readers = 0;
  for (size_t i = 0; i < model_.seqs.size(); ++i) {
    const auto [held, only] = model_.Held(i);
    const uint64_t stride = GeometryOf(model_.seqs[i].geometry).frame_stride();
    used += held * stride;
    quarantined += only * stride;
    open += model_.seqs[i].state == SequenceState::kOpen;
    sealed += model_.seqs[i].state == SequenceState::kSealed;
    released += model_.seqs[i].state == SequenceState::kReleased;
    readers += model_.Readers(i);
  }
  EXPECT_EQ(c.used_bytes, used);
  EXPECT_EQ(c.quarantined_bytes, quarantined);
  EXPECT_EQ(c.free_bytes + c.used_bytes + c.overhead_bytes, c.pool_bytes);
  EXPECT_EQ(c.sequences_open, open);
  EXPECT_EQ(c.sequences_sealed, sealed);
  EXPECT_EQ(c.sequences_released, released);
  EXPECT_EQ(c.grants_reader, readers);
  EXPECT_EQ(c.grants_writer, model_.LiveGrants() - readers);
  const CoreCounters n = core_->Counters();
  const CoreCounters& m = model_.counters;
  EXPECT_EQ(n.opens, m.opens);
  EXPECT_EQ(n.attaches, m.attaches);
  EXPECT_EQ(n.commits, m.commits);
  EXPECT_EQ(n.seals, m.seals);
  EXPECT_EQ(n.renewals, m.renewals);
  EXPECT_EQ(n.grants_released, m.grants_released);
  EXPECT_EQ(n.grants_expired, m.grants_expired);
  EXPECT_EQ(n.grants_revoked, m.grants_revoked);
  EXPECT_EQ(n.sequences_aborted, m.sequences_aborted);
  EXPECT_EQ(n.sequences_released, m.sequences_released);
  EXPECT_EQ(n.sequences_expired, m.sequences_expired);
  EXPECT_EQ(n.sequences_unattended, m.sequences_unattended);
  EXPECT_EQ(n.stale_requests, m.stale_requests);
  EXPECT_EQ(n.expired_requests, m.expired_requests);
  EXPECT_EQ(n.capacity_refusals, m.capacity_refusals);
}

void Program::CheckListings() {
  const std::vector<SequenceInfo> sequences = core_->Sequences(SequenceId(), 1000, "");
  size_t at = 0;
  std::map<FrameAddress, uint64_t> taken;  // start -> end
  for (size_t i = 0; i < model_.seqs.size(); ++i) {
    const CoreModel::Seq& s = model_.seqs[i];
    const uint64_t stride = GeometryOf(s.geometry).frame_stride();
    for (uint32_t b = 0; b < model_.Held(i).first; ++b) {
      EXPECT_TRUE(taken.emplace(s.frames[b], s.frames[b].offset + stride).second);
    }
    if (!s.listed()) continue;
    ASSERT_LT(at, sequences.size());
    EXPECT_EQ(sequences[at].id.value(), s.id);
    EXPECT_EQ(sequences[at].state, s.state);
    EXPECT_EQ(sequences[at].blocks, s.blocks);
    EXPECT_EQ(sequences[at].readers, model_.Readers(i));
    ++at;
  }
  EXPECT_EQ(at, sequences.size());
  for (auto it = taken.begin(); it != taken.end(); ++it) {
    const auto next = std::next(it);
    if (next == taken.end() || next->first.arena != it->first.arena) continue;
    EXPECT_LE(it->second, next->first.offset) << "two frames overlap";
  }
  const std::vector<GrantInfo> grants = core_->Grants(GrantId(), 1000);
  at = 0;
  for (const CoreModel::Grant& g : model_.grants) {
    const bool live = g.end == End::kLive;
    EXPECT_EQ(core_->GrantWord(g.info.id) == g.info.epoch.value(), live);
    if (!live && !g.quarantined()) continue;
    ASSERT_LT(at, grants.size());
    EXPECT_EQ(grants[at].id, g.info.id);
    EXPECT_EQ(grants[at].quarantined, !live);
    EXPECT_EQ(grants[at].frames, g.frames);
    EXPECT_EQ(grants[at].lease_left, live ? g.expires - model_.served : Duration(0));
    ++at;
  }
  EXPECT_EQ(at, grants.size());
}

}  // namespace oasiskv::server
