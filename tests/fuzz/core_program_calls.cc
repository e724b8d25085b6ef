// The control calls of a program.
#include <algorithm>
#include <cstdlib>
#include <set>
#include <span>
#include <utility>

#include "tests/fuzz/core_program.h"

namespace oasiskv::server {

using End = CoreModel::End;

bool Program::Fits(int geometry, uint32_t blocks, bool& unsure) {
  const CapacityInfo c = core_->Capacity();
  const uint64_t stride = GeometryOf(geometry).frame_stride();
  unsure = stride > kSlabBytes && blocks > 0;
  uint64_t frames = c.slabs_free * (kSlabBytes / stride);
  for (const FrameClassInfo& k : c.classes) {
    if (k.frame_stride == stride) frames += k.frames - k.frames_used;
  }
  return unsure || frames >= blocks;
}

void Program::Open() {
  const int name = Pick(kNames), geometry = Pick(3);
  const uint32_t blocks = static_cast<uint32_t>(Pick(geometry == 2 ? 5 : 20));
  const uint64_t connection = Pick(2) == 0 ? 0 : 1 + static_cast<uint64_t>(Pick(3)) + base_;
  next_connection_ = std::max(next_connection_, connection + 1);
  OpenSpec spec{Name(name), Owner(name), GeometryOf(geometry),
                blocks,     Lease(),     ConnectionId(connection),
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
  s.watched = connection == 0;
  model_.seqs.push_back(std::move(s));
  AddGrant(got->grant, model_.seqs.size() - 1, true, 0, 2, connection, spec.lease);
}

void Program::AddGrant(const wire::Grant& info, size_t seq, bool writer, uint32_t first_head,
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

void Program::Extend() {
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
  const absl::StatusOr<ExtendResult> got = core_->Extend(Key(g), s.blocks, blocks);
  if (want == ErrorCode::kUnspecified && unsure && !got.ok()) want = ErrorCode::kCapacity;
  Expect(want, got.status());
  if (!got.ok()) return;
  EXPECT_EQ(got->first_block, s.blocks);
  s.blocks += blocks;
  g.frames = s.blocks;
  s.frames.insert(s.frames.end(), got->frames.begin(), got->frames.end());
}

void Program::Commit() {
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
    } else if (s.watched) {
      if (Pick(4) != 0) WriteMissing(g, r);
      for (uint32_t b = r.first_block; b < r.first_block + r.block_count; ++b) {
        for (uint32_t i = 3 * r.first_layer; i < 3 * (r.first_layer + r.layer_count); ++i) {
          if (!s.noted.contains({b, i / 3, i % 3})) want = ErrorCode::kNotCommitted;
        }
      }
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

void Program::WriteMissing(const CoreModel::Grant& g, const LayerBlocks& r) {
  CoreModel::Seq& s = model_.seqs[g.seq];
  const Geometry geometry = GeometryOf(s.geometry);
  for (uint32_t b = r.first_block; b < r.first_block + r.block_count; ++b) {
    for (uint32_t l = r.first_layer; l < r.first_layer + r.layer_count; ++l) {
      for (uint32_t head = 0; head < 3; ++head) {
        if (!s.noted.insert({b, l, head}).second) continue;
        const fabric::RemoteRange range =
            head == 2
                ? fabric::RemoteRange{b, geometry.summary_offset(LayerIndex(l), HeadIndex(0)),
                                      geometry.layer_summaries_bytes()}
                : fabric::RemoteRange{b, geometry.entry_offset(LayerIndex(l), HeadIndex(head)),
                                      geometry.entry_bytes()};
        const absl::StatusOr<fabric::PinnedRanges> got =
            core_->Authorize(g.info.id, g.info.epoch, fabric::Access::kWrite, std::span(&range, 1));
        ASSERT_TRUE(got.ok()) << got.status();
        if (head < 2) {
          uint64_t& truth = s.written[{b, l, head}];
          truth = NextValue(s.name);
          std::memcpy(got->memory[0].data(), &truth, sizeof(truth));
        }
        core_->Written(g.info.id, g.info.epoch, std::span(&range, 1));
      }
    }
  }
}

void Program::Seal() {
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
  // A repeat, as long as the grant's end is remembered.
  const bool repeat = want == ErrorCode::kWrongState && g.sealed_as == needed;
  if (repeat) want = ErrorCode::kUnspecified;
  Expect(want, core_->Seal(Key(g), uint64_t{needed} * 16 - 3, {}, "blob"));
  if (repeat) return;
  if (want != ErrorCode::kUnspecified) return;
  ++model_.counters.seals;
  s.state = SequenceState::kSealed;
  s.blocks = needed;
  g.sealed_as = needed;
  model_.EndGrant(g, End::kSealed);
}

void Program::Attach() {
  AttachSpec spec;
  const int name = Pick(kNames);
  CoreModel::Seq* s = model_.Live(name);
  const int geometry = s != nullptr && Pick(20) != 0 ? s->geometry : Pick(3);
  spec.name = Name(name);
  spec.identity = Owner(name);
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

void Program::Renew() {
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

void Program::Release() {
  if (model_.grants.empty()) return;
  const size_t index = PickGrant();
  CoreModel::Grant& g = model_.grants[index];
  Say("release grant ", index);
  const GrantKey key = Key(g);
  const absl::StatusOr<ReleaseResult> got = core_->Release(std::span(&key, 1), {}, Owner(0));
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->grants, g.end == End::kLive ? 1u : 0u);
  if (g.end == End::kLive) model_.LoseGrant(g, End::kReleased);
}

void Program::ReleaseSequence() {
  const int name = Pick(kNames);
  const SequenceRef ref{Name(name)};
  CoreModel::Seq* s = model_.Live(name);
  Say("release sequence ", ref.name);
  const bool open = s != nullptr && s->state == SequenceState::kOpen;
  Expect(open ? ErrorCode::kWrongState : ErrorCode::kUnspecified,
         core_->Release({}, std::span(&ref, 1), Owner(name)).status());
  if (s == nullptr || open) return;
  ++model_.counters.sequences_released;
  const bool read = model_.Readers(static_cast<size_t>(s - model_.seqs.data())) > 0;
  s->state = read ? SequenceState::kReleased : SequenceState::kAborted;
}

void Program::Abort() {
  const int name = Pick(kNames);
  Say("abort ", Name(name));
  uint32_t want = 0;
  for (size_t i = 0; i < model_.seqs.size(); ++i) {
    if (model_.seqs[i].name != name || !model_.seqs[i].listed()) continue;
    ++model_.counters.sequences_aborted;
    want += model_.AbortSeq(i);
  }
  const absl::StatusOr<uint32_t> got = core_->Abort({Name(name)}, Owner(name));
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(*got, want);
}

}  // namespace oasiskv::server
