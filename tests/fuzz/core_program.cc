#include "tests/fuzz/core_program.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace oasiskv::server {

using End = CoreModel::End;
using fabric::Access;

Program::Program(uint32_t seed) : random_(seed) {
  CoreOptions o;
  o.pool_bytes = 48 * kSlabBytes;
  o.arena_bytes = 16 * kSlabBytes;
  o.slab_bytes = kSlabBytes;
  o.touch_threads = 1;
  o.max_grants = 48;
  o.max_sequences = 12;
  o.max_blocks_per_sequence = kMaxBlocks;
  o.unattended_ttl = Millis(seed % 4 * 1500);  // 0: never
  core_ = *KvCore::Create(o, clock_);
  model_.max_grants = o.max_grants;
  model_.unattended_ttl = o.unattended_ttl;
  max_sequences_ = o.max_sequences;
  Connect();
}

bool Program::Step() {
  struct {
    int weight;
    void (Program::*perform)();
  } const steps[] = {
      {12, &Program::Open},   {6, &Program::Extend},          {16, &Program::Commit},
      {8, &Program::Seal},    {12, &Program::Attach},         {6, &Program::Renew},
      {6, &Program::Release}, {3, &Program::ReleaseSequence}, {2, &Program::Abort},
      {8, &Program::Tick},    {4, &Program::Fence},           {1, &Program::Close},
      {14, &Program::Read},   {14, &Program::Write},          {6, &Program::DropPin}};
  int total = 0;
  for (const auto& s : steps) total += s.weight;
  int pick = Pick(total);
  for (const auto& s : steps) {
    if ((pick -= s.weight) >= 0) continue;
    (this->*s.perform)();
    break;
  }
  CheckInvariants();
  if (++count_ % 64 == 0) CheckListings();
  return !::testing::Test::HasFailure();
}

void Program::Finish() {
  Say("finish");
  pins_.clear();
  for (int name = 0; name < kNames; ++name) {
    EXPECT_TRUE(core_->Abort(Name(name), Me()).ok());
  }
  for (uint64_t c = 1; c < next_connection_; ++c) core_->ConnectionClosed(ConnectionId(c));
  const CapacityInfo capacity = core_->Capacity();
  EXPECT_EQ(capacity.used_bytes, 0u);
  EXPECT_EQ(capacity.slabs_free, capacity.slabs_total);
  EXPECT_TRUE(core_->Grants(GrantId(), 1000).empty());
  EXPECT_TRUE(core_->Sequences(SequenceId(), 1000, "").empty());
}

std::string Program::Steps() const {
  std::string out;
  const size_t from = steps_.size() > 60 ? steps_.size() - 60 : 0;
  for (size_t i = from; i < steps_.size(); ++i) absl::StrAppend(&out, i, ": ", steps_[i], "\n");
  return out;
}

void Program::Tick() {
  const Duration passed = Millis(Pick(10) == 0 ? 15000 : Pick(500));
  Say("tick ", passed / Millis(1), " ms");
  clock_.Advance(passed);
  core_->Tick(clock_.Now());
  model_.Tick(passed);
}

void Program::Fence() {
  if (model_.grants.empty()) return;
  const size_t index = PickGrant();
  CoreModel::Grant& g = model_.grants[index];
  const uint64_t connection = Pick(4) == 0 ? 77777 : g.connection;
  Say("fence grant ", index, " from connection ", connection);
  core_->WriterFenced(ConnectionId(connection), g.info.id);
  if (connection == g.connection) g.fenced = true;
}

void Program::Connect() {
  for (uint64_t c = base_ + 1; c <= base_ + 3; ++c) core_->ConnectionOpened(ConnectionId(c));
}

void Program::Close() {
  const uint64_t connection = 1 + base_ + static_cast<uint64_t>(Pick(3));
  Say("close connection ", connection);
  core_->ConnectionClosed(ConnectionId(connection));
  model_.closed.insert(connection);
  for (CoreModel::Grant& g : model_.grants) {
    if (g.connection == connection) g.fenced = true;
  }
  if (Pick(2) == 0) {
    base_ += 3;
    Connect();
  }
}

void Program::Transfer(Access access) {
  if (model_.grants.empty()) return;
  const size_t index = PickGrant();
  CoreModel::Grant& g = model_.grants[index];
  CoreModel::Seq& s = model_.seqs[g.seq];
  const bool read = access == Access::kRead;
  const uint32_t block = static_cast<uint32_t>(Pick(static_cast<int>(g.frames) + 2));
  const uint32_t layer = static_cast<uint32_t>(Pick(2)), head = static_cast<uint32_t>(Pick(2));
  const Geometry geometry = GeometryOf(s.geometry);
  const fabric::RemoteRange range{block, geometry.entry_offset(LayerIndex(layer), HeadIndex(head)),
                                  geometry.entry_bytes()};
  Say(read ? "read" : "write", " grant ", index, " of ", Name(s.name), " block ", block, " layer ",
      layer, " head ", head);
  ErrorCode want = model_.Refusal(g, false);
  const bool committed =
      s.state != SequenceState::kOpen ? block < s.blocks : s.committed.contains({block, layer});
  if (want == ErrorCode::kUnspecified) {
    if (g.writer == read) {
      want = ErrorCode::kPermissionDenied;
      // NOLINTNEXTLINE(bugprone-branch-clone): in the order of the core's checks
    } else if (!read && g.fenced && g.connection != 0) {
      want = ErrorCode::kWrongState;
    } else if (block >= g.frames) {
      want = ErrorCode::kOutOfRange;
    } else if (head < g.first_head || head >= g.first_head + g.head_count) {
      want = ErrorCode::kForeign;
    } else if (read && !committed) {
      want = ErrorCode::kNotCommitted;
    } else if (!read && committed) {
      want = ErrorCode::kWrongState;
    }
  }
  absl::StatusOr<fabric::PinnedRanges> got =
      core_->Authorize(g.info.id, g.info.epoch, access, std::span(&range, 1));
  Expect(want, got.status());
  if (!got.ok()) return;
  std::byte* data = got->memory[0].data();
  uint64_t& truth = s.written[{block, layer, head}];
  uint64_t value = ++value_;
  if (read) {
    std::memcpy(&value, data, sizeof(value));
    EXPECT_TRUE(truth == 0 || value == truth) << "another's bytes";
  } else {
    std::memcpy(data, &value, sizeof(value));
    truth = value;
  }
  if (Pick(3) != 0) return;
  ++g.pins;
  pins_.push_back({index, std::move(got->pin)});
}

void Program::DropPin() {
  if (pins_.empty()) return;
  const size_t at = static_cast<size_t>(Pick(static_cast<int>(pins_.size())));
  Say("drop a pin of grant ", pins_[at].grant);
  --model_.grants[pins_[at].grant].pins;
  pins_.erase(pins_.begin() + static_cast<ptrdiff_t>(at));
}

}  // namespace oasiskv::server
