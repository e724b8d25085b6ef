// The core fuzzed as programs: random steps, each with the answer the model expects, and invariants
// after every one. A failure prints the steps that led to it; OASISKV_FUZZ_SEED=<n> runs one seed,
// OASISKV_FUZZ_STEPS=<n> that many steps of each.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "gtest/gtest.h"
#include "oasiskv/error.h"
#include "tests/fuzz/core_model.h"

namespace oasiskv::server {
namespace {

using End = CoreModel::End;
using fabric::Access;

constexpr uint32_t kMaxBlocks = 40;
constexpr uint64_t kSlabBytes = 64 << 10;

// Strides of 4 KiB, 12 KiB (a slab has a tail) and 72 KiB (a frame takes two slabs).
Geometry GeometryOf(int index) {
  Geometry g;
  g.layers = 2;
  g.kv_heads = g.total_kv_heads = 2;
  g.head_dim = index == 0 ? 12 : index == 1 ? 40 : 250;
  g.element_type = ElementType::kBFloat16;
  return g;
}

// Thread contract: used by one thread.
class Program {
 public:
  explicit Program(uint32_t seed) : random_(seed) {
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
  ~Program() { pins_.clear(); }

  // False once something differed.
  bool Step() {
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

  // Lets go of everything; what is left must be nothing.
  void Finish() {
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

  std::string Steps() const {
    std::string out;
    const size_t from = steps_.size() > 60 ? steps_.size() - 60 : 0;
    for (size_t i = from; i < steps_.size(); ++i) absl::StrAppend(&out, i, ": ", steps_[i], "\n");
    return out;
  }

 private:
  static constexpr int kNames = 10;
  struct Pin {
    size_t grant;
    std::shared_ptr<const void> pin;
  };

  int Pick(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }
  static std::string Name(int i) { return absl::StrCat("s", i); }
  static Identity Me() { return {"model", "rev", "tenant"}; }
  template <typename... Args>
  void Say(const Args&... args) {
    steps_.push_back(absl::StrCat(args...));
  }
  void Expect(ErrorCode want, const absl::Status& got) {
    absl::StrAppend(&steps_.back(), " -> ", std::string(ErrorCodeName(ErrorCodeOf(got))));
    EXPECT_EQ(std::string(ErrorCodeName(want)), std::string(ErrorCodeName(ErrorCodeOf(got))))
        << got;
    if (want == ErrorCode::kStale) ++model_.counters.stale_requests;
    if (want == ErrorCode::kLeaseExpired) ++model_.counters.expired_requests;
    if (want == ErrorCode::kCapacity) ++model_.counters.capacity_refusals;
  }
  // Recent grants more often than old ones.
  size_t PickGrant() {
    const size_t n = model_.grants.size();
    const size_t back = static_cast<size_t>(Pick(4) == 0 ? Pick(200) : Pick(24));
    return back < n ? n - 1 - back : static_cast<size_t>(Pick(static_cast<int>(n)));
  }
  GrantKey Key(const CoreModel::Grant& g) const { return {g.info.id, g.info.epoch}; }
  // Whether the pool has the frames, by the core's own books before the call. Frames of several
  // slabs need adjacent ones, which the books do not show: `unsure` then.
  bool Fits(int geometry, uint32_t blocks, bool& unsure) {
    const CapacityInfo c = core_->Capacity();
    const uint64_t stride = GeometryOf(geometry).frame_stride();
    unsure = stride > kSlabBytes && blocks > 0;
    uint64_t frames = c.slabs_free * (kSlabBytes / stride);
    for (const FrameClassInfo& k : c.classes) {
      if (k.frame_stride == stride) frames += k.frames - k.frames_used;
    }
    return unsure || frames >= blocks;
  }

  void Open() {
    const int name = Pick(kNames), geometry = Pick(3);
    const uint32_t blocks = static_cast<uint32_t>(Pick(geometry == 2 ? 5 : 20));
    const uint64_t connection = Pick(2) == 0 ? 0 : 1 + static_cast<uint64_t>(Pick(3)) + base_;
    next_connection_ = std::max(next_connection_, connection + 1);
    OpenSpec spec{Name(name), Me(),    GeometryOf(geometry),
                  blocks,     Lease(), ConnectionId(connection),
                  false,      "fuzz"};
    Say("open ", spec.name, " geometry ", geometry, " blocks ", blocks, " connection ", connection);
    bool unsure = false;
    const bool fits = Fits(geometry, blocks, unsure);
    ErrorCode want = ErrorCode::kUnspecified;
    if (model_.closed.contains(connection)) {
      want = ErrorCode::kPeerLost;
    } else if (model_.Live(name) != nullptr) {
      want = ErrorCode::kAlreadyExists;
    } else if (model_.Listed() == max_sequences_ || model_.LiveGrants() == model_.max_grants ||
               !fits) {
      want = ErrorCode::kCapacity;
    }
    const absl::StatusOr<OpenResult> got = core_->Open(spec);
    if (want == ErrorCode::kUnspecified && unsure && !got.ok()) want = ErrorCode::kCapacity;
    Expect(want, got.status());
    if (!got.ok()) return;
    ++model_.counters.opens;
    CoreModel::Seq s;
    s.id = got->sequence.value();
    s.name = name;
    s.geometry = geometry;
    s.blocks = blocks;
    s.frames = got->grant.frames;
    model_.seqs.push_back(std::move(s));
    AddGrant(got->grant, model_.seqs.size() - 1, true, 0, 2, connection, spec.lease);
  }

  void AddGrant(const GrantInfoForHolder& info, size_t seq, bool writer, uint32_t first_head,
                uint32_t head_count, uint64_t connection, Duration lease) {
    CoreModel::Grant g;
    g.info = info;
    g.seq = seq;
    g.writer = writer;
    g.frames = static_cast<uint32_t>(info.frames.size());
    g.first_head = first_head;
    g.head_count = head_count;
    g.connection = connection;
    g.fenced = connection == 0;
    g.expires = model_.served + lease;
    EXPECT_EQ(info.frames, std::vector<FrameAddress>(model_.seqs[seq].frames.begin(),
                                                     model_.seqs[seq].frames.begin() + g.frames));
    model_.grants.push_back(std::move(g));
  }
  Duration Lease() { return Millis(500 + Pick(8000)); }

  void Extend() {
    if (model_.grants.empty()) return;
    const size_t index = PickGrant();
    CoreModel::Grant& g = model_.grants[index];
    CoreModel::Seq& s = model_.seqs[g.seq];
    const uint32_t blocks = 1 + static_cast<uint32_t>(Pick(8));
    Say("extend grant ", index, " of ", Name(s.name), " by ", blocks);
    bool unsure = false;
    const bool fits = Fits(s.geometry, blocks, unsure);
    ErrorCode want = model_.Refusal(g, true);
    if (want == ErrorCode::kUnspecified) {
      if (!g.writer) {
        want = ErrorCode::kPermissionDenied;
      } else if (s.blocks + blocks > kMaxBlocks) {
        want = ErrorCode::kInvalidArgument;
      } else if (g.fenced && g.connection != 0) {
        want = ErrorCode::kWrongState;
      } else if (!fits) {
        want = ErrorCode::kCapacity;
      }
    }
    const absl::StatusOr<ExtendResult> got = core_->Extend(Key(g), blocks);
    if (want == ErrorCode::kUnspecified && unsure && !got.ok()) want = ErrorCode::kCapacity;
    Expect(want, got.status());
    if (!got.ok()) return;
    EXPECT_EQ(got->first_block, s.blocks);
    s.blocks += blocks;
    g.frames = s.blocks;
    s.frames.insert(s.frames.end(), got->frames.begin(), got->frames.end());
  }

  void Commit() {
    if (model_.grants.empty()) return;
    const size_t index = PickGrant();
    CoreModel::Grant& g = model_.grants[index];
    CoreModel::Seq& s = model_.seqs[g.seq];
    LayerBlocks r{0, 2, 0, s.blocks};
    if (Pick(2) == 0) {
      r = {static_cast<uint32_t>(Pick(2)), 1 + static_cast<uint32_t>(Pick(2)),
           static_cast<uint32_t>(Pick(12)), 1 + static_cast<uint32_t>(Pick(12))};
    }
    Say("commit grant ", index, " of ", Name(s.name), " layers ", r.first_layer, "+", r.layer_count,
        " blocks ", r.first_block, "+", r.block_count);
    ErrorCode want = model_.Refusal(g, true);
    if (want == ErrorCode::kUnspecified) {
      if (!g.writer) {
        want = ErrorCode::kPermissionDenied;
      } else if (r.block_count == 0) {
        want = ErrorCode::kInvalidArgument;
      } else if (r.first_layer + r.layer_count > 2 || r.first_block + r.block_count > s.blocks) {
        want = ErrorCode::kOutOfRange;
      }
    }
    Expect(want, core_->Commit(Key(g), std::span(&r, 1), {}));
    if (want != ErrorCode::kUnspecified) return;
    ++model_.counters.commits;
    for (uint32_t b = r.first_block; b < r.first_block + r.block_count; ++b) {
      for (uint32_t l = r.first_layer; l < r.first_layer + r.layer_count; ++l) {
        s.committed.insert({b, l});
      }
    }
  }

  void Seal() {
    if (model_.grants.empty()) return;
    const size_t index = PickGrant();
    CoreModel::Grant& g = model_.grants[index];
    CoreModel::Seq& s = model_.seqs[g.seq];
    const uint32_t needed =
        s.blocks == 0 ? 1 : 1 + static_cast<uint32_t>(Pick(static_cast<int>(s.blocks) + 1));
    Say("seal grant ", index, " of ", Name(s.name), " with ", needed, " blocks");
    ErrorCode want = model_.Refusal(g, true);
    if (want == ErrorCode::kUnspecified) {
      if (!g.writer) {
        want = ErrorCode::kPermissionDenied;
      } else if (needed > s.blocks) {
        want = ErrorCode::kOutOfRange;
      } else {
        for (uint32_t i = 0; i < 2 * needed; ++i) {
          if (!s.committed.contains({i / 2, i % 2})) want = ErrorCode::kNotCommitted;
        }
      }
    }
    Expect(want, core_->Seal(Key(g), uint64_t{needed} * 16 - 3, {}, "blob"));
    if (want != ErrorCode::kUnspecified) return;
    ++model_.counters.seals;
    s.state = SequenceState::kSealed;
    s.blocks = needed;
    model_.EndGrant(g, End::kSealed);
  }

  void Attach() {
    AttachSpec spec;
    const int name = Pick(kNames);
    CoreModel::Seq* s = model_.Live(name);
    const int geometry = s != nullptr && Pick(20) != 0 ? s->geometry : Pick(3);
    spec.name = Name(name);
    spec.identity = Me();
    spec.geometry = GeometryOf(geometry);
    spec.first_head = static_cast<uint32_t>(Pick(4)) / 3;
    spec.head_count = static_cast<uint32_t>(Pick(3));
    spec.require_sealed = Pick(4) == 0;
    spec.lease = Lease();
    Say("attach ", spec.name, " geometry ", geometry, " heads ", spec.first_head, "+",
        spec.head_count, spec.require_sealed ? " sealed" : "");
    ErrorCode want = ErrorCode::kUnspecified;
    const uint32_t heads = spec.first_head == 0 && spec.head_count == 0 ? 2 : spec.head_count;
    if (s == nullptr) {
      want = ErrorCode::kNotFound;
    } else if (geometry != s->geometry) {
      want = ErrorCode::kGeometryMismatch;
    } else if (heads == 0 || spec.first_head + heads > 2) {
      want = ErrorCode::kOutOfRange;
    } else if (spec.require_sealed && s->state == SequenceState::kOpen) {
      want = ErrorCode::kNotSealed;
    } else if (model_.LiveGrants() == model_.max_grants) {
      want = ErrorCode::kCapacity;
    }
    const absl::StatusOr<AttachResult> got = core_->Attach(spec);
    Expect(want, got.status());
    if (!got.ok()) return;
    ++model_.counters.attaches;
    EXPECT_EQ(got->state, s->state);
    EXPECT_EQ(got->blob, s->state == SequenceState::kSealed ? "blob" : "");
    std::set<std::pair<uint32_t, uint32_t>> committed;
    for (const LayerBlocks& r : got->committed) {
      for (uint32_t b = r.first_block; b < r.first_block + r.block_count; ++b) {
        for (uint32_t l = r.first_layer; l < r.first_layer + r.layer_count; ++l) {
          EXPECT_TRUE(committed.insert({b, l}).second);
        }
      }
    }
    EXPECT_TRUE(s->state != SequenceState::kOpen || committed == s->committed);
    EXPECT_EQ(got->grant.frames.size(), s->blocks);
    AddGrant(got->grant, static_cast<size_t>(s - model_.seqs.data()), false, spec.first_head, heads,
             0, spec.lease);
  }

  void Renew() {
    if (model_.grants.empty()) return;
    const size_t index = PickGrant();
    CoreModel::Grant& g = model_.grants[index];
    const Duration lease = Lease();
    Say("renew grant ", index);
    const GrantKey key = Key(g);
    const absl::StatusOr<RenewResult> got = core_->Renew(std::span(&key, 1), lease);
    ASSERT_TRUE(got.ok());
    ++model_.counters.renewals;
    const ErrorCode want = model_.Refusal(g, false);
    ASSERT_EQ(got->lost.empty(), want == ErrorCode::kUnspecified);
    if (got->lost.empty()) {
      g.expires = model_.served + lease;
    } else {
      EXPECT_EQ(got->lost[0].reason, static_cast<int>(want));
    }
  }

  void Release() {
    if (model_.grants.empty()) return;
    const size_t index = PickGrant();
    CoreModel::Grant& g = model_.grants[index];
    Say("release grant ", index);
    const GrantKey key = Key(g);
    const absl::StatusOr<ReleaseResult> got = core_->Release(std::span(&key, 1), {}, Me());
    ASSERT_TRUE(got.ok());
    EXPECT_EQ(got->grants, g.end == End::kLive ? 1u : 0u);
    if (g.end == End::kLive) model_.LoseGrant(g, End::kReleased);
  }

  void ReleaseSequence() {
    const std::string name = Name(Pick(kNames));
    CoreModel::Seq* s = model_.Live(std::atoi(name.c_str() + 1));
    Say("release sequence ", name);
    const bool open = s != nullptr && s->state == SequenceState::kOpen;
    Expect(open ? ErrorCode::kWrongState : ErrorCode::kUnspecified,
           core_->Release({}, std::span(&name, 1), Me()).status());
    if (s == nullptr || open) return;
    ++model_.counters.sequences_released;
    const bool read = model_.Readers(static_cast<size_t>(s - model_.seqs.data())) > 0;
    s->state = read ? SequenceState::kReleased : SequenceState::kAborted;
  }

  void Abort() {
    const int name = Pick(kNames);
    Say("abort ", Name(name));
    uint32_t want = 0;
    for (size_t i = 0; i < model_.seqs.size(); ++i) {
      if (model_.seqs[i].name != name || !model_.seqs[i].listed()) continue;
      ++model_.counters.sequences_aborted;
      want += model_.AbortSeq(i);
    }
    const absl::StatusOr<uint32_t> got = core_->Abort(Name(name), Me());
    ASSERT_TRUE(got.ok());
    EXPECT_EQ(*got, want);
  }

  void Tick() {
    const Duration passed = Millis(Pick(10) == 0 ? 15000 : Pick(500));
    Say("tick ", passed / Millis(1), " ms");
    clock_.Advance(passed);
    core_->Tick(clock_.Now());
    model_.Tick(passed);
  }

  void Fence() {
    if (model_.grants.empty()) return;
    const size_t index = PickGrant();
    CoreModel::Grant& g = model_.grants[index];
    const uint64_t connection = Pick(4) == 0 ? 77777 : g.connection;
    Say("fence grant ", index, " from connection ", connection);
    core_->WriterFenced(ConnectionId(connection), g.info.id);
    if (connection == g.connection) g.fenced = true;
  }

  void Connect() {
    for (uint64_t c = base_ + 1; c <= base_ + 3; ++c) core_->ConnectionOpened(ConnectionId(c));
  }

  void Close() {
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

  void Read() { Access_(Access::kRead); }
  void Write() { Access_(Access::kWrite); }
  void Access_(Access access) {
    if (model_.grants.empty()) return;
    const size_t index = PickGrant();
    CoreModel::Grant& g = model_.grants[index];
    CoreModel::Seq& s = model_.seqs[g.seq];
    const bool read = access == Access::kRead;
    const uint32_t block = static_cast<uint32_t>(Pick(static_cast<int>(g.frames) + 2));
    const uint32_t layer = static_cast<uint32_t>(Pick(2)), head = static_cast<uint32_t>(Pick(2));
    const Geometry geometry = GeometryOf(s.geometry);
    const fabric::RemoteRange range{
        block, geometry.entry_offset(LayerIndex(layer), HeadIndex(head)), geometry.entry_bytes()};
    Say(read ? "read" : "write", " grant ", index, " of ", Name(s.name), " block ", block,
        " layer ", layer, " head ", head);
    ErrorCode want = model_.Refusal(g, false);
    const bool committed =
        s.state != SequenceState::kOpen ? block < s.blocks : s.committed.contains({block, layer});
    if (want == ErrorCode::kUnspecified) {
      if (g.writer == read) {
        want = ErrorCode::kPermissionDenied;
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

  void DropPin() {
    if (pins_.empty()) return;
    const size_t at = static_cast<size_t>(Pick(static_cast<int>(pins_.size())));
    Say("drop a pin of grant ", pins_[at].grant);
    --model_.grants[pins_[at].grant].pins;
    pins_.erase(pins_.begin() + static_cast<ptrdiff_t>(at));
  }

  void CheckInvariants() {
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

  // Listings, words and addresses against the model, one by one.
  void CheckListings() {
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

  FakeClock clock_;
  std::unique_ptr<KvCore> core_;
  CoreModel model_;
  std::mt19937 random_;
  std::vector<Pin> pins_;  // go before the core
  std::vector<std::string> steps_;
  size_t max_sequences_ = 0;
  uint64_t base_ = 0, next_connection_ = 1, value_ = 0, count_ = 0;
};

TEST(CoreFuzz, RandomProgramsAgreeWithTheModel) {
  const char* one_seed = std::getenv("OASISKV_FUZZ_SEED");
  const char* step_count = std::getenv("OASISKV_FUZZ_STEPS");
  const int steps = step_count != nullptr ? std::atoi(step_count) : 1000;
  const uint32_t first = one_seed != nullptr ? static_cast<uint32_t>(std::atoi(one_seed)) : 1;
  const uint32_t last = one_seed != nullptr ? first : 20;
  for (uint32_t seed = first; seed <= last; ++seed) {
    Program program(seed);
    bool good = true;
    for (int i = 0; i < steps && good; ++i) good = program.Step();
    if (good) program.Finish();
    if (HasFailure()) {
      FAIL() << "seed " << seed << ", the last steps:\n" << program.Steps();
    }
  }
}

}  // namespace
}  // namespace oasiskv::server
