// Arenas, slabs and frames.
#include "server/pool/pool.h"

#include <sys/stat.h>

#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "oasiskv/error.h"
#include "oasiskv/geometry.h"
#include "server/pool/slab_allocator.h"

namespace oasiskv::server {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kSlab = 64 * kKiB;

PoolOptions Options(uint64_t slabs) {
  PoolOptions o;
  o.pool_bytes = slabs * kSlab;
  o.slab_bytes = kSlab;
  o.touch_threads = 2;
  return o;
}

std::unique_ptr<Pool> MustPool(const PoolOptions& options) {
  absl::StatusOr<std::unique_ptr<Pool>> pool = Pool::Create(options);
  EXPECT_TRUE(pool.ok()) << pool.status();
  return pool.ok() ? *std::move(pool) : nullptr;
}

constexpr Owner kAnn{1}, kBob{2};

// Frames for one tenant, which need no clearing.
absl::Status Take(SlabAllocator& a, uint64_t stride, uint32_t count, std::vector<Frame>& out) {
  std::vector<Frame> dirty;
  absl::Status status = a.Allocate(stride, count, kAnn, out, dirty);
  EXPECT_TRUE(dirty.empty());
  return status;
}

// How many of `count` frames for `owner` were dirty; they are given back in `out`.
size_t DirtyOf(SlabAllocator& a, uint64_t stride, uint32_t count, Owner owner,
               std::vector<Frame>& out) {
  std::vector<Frame> dirty;
  EXPECT_TRUE(a.Allocate(stride, count, owner, out, dirty).ok());
  return dirty.size();
}

void ExpectSums(const Pool& pool, const SlabAllocator& a) {
  EXPECT_EQ(a.free_bytes() + a.used_bytes() + a.overhead_bytes(), pool.pool_bytes());
}

TEST(PoolTest, SizesThatDoNotFitAreRefusedNamingTheFlag) {
  struct {
    const char* flag;
    PoolOptions options;
  } cases[8];
  for (auto& c : cases) c.options = Options(8);
  int n = 0;
  auto bad = [&](const char* flag) -> PoolOptions& {
    cases[n].flag = flag;
    return cases[n++].options;
  };
  bad("--pool_bytes").pool_bytes = 8 * kSlab + 1;
  bad("--pool_bytes").pool_bytes = 0;
  bad("--slab_bytes").slab_bytes = 1000;
  bad("--slab_bytes").slab_bytes = 0;
  bad("--arena_bytes").arena_bytes = 3 * kSlab;     // does not divide the pool
  bad("--arena_bytes").arena_bytes = kSlab + 4096;  // not whole slabs
  bad("--numa_node").numa_node = 900;
  bad("--touch_threads").touch_threads = -1;
  for (int i = 0; i < n; ++i) {
    const absl::Status status = Pool::Create(cases[i].options).status();
    EXPECT_EQ(ErrorCodeOf(status), ErrorCode::kInvalidArgument) << cases[i].flag;
    EXPECT_THAT(std::string(status.message()), HasSubstr(cases[i].flag));
  }
}

TEST(PoolTest, MoreThanTheMachineHasIsRefusedAtStart) {
  PoolOptions o = Options(1);
  o.slab_bytes = uint64_t{1} << 40;
  o.pool_bytes = uint64_t{64} << 40;
  const absl::Status status = Pool::Create(o).status();
  EXPECT_EQ(ErrorCodeOf(status), ErrorCode::kCapacity) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("--pool_bytes"));
}

TEST(PoolTest, HugePagesThatAreNotThereAreRefusedOrRecorded) {
  // No machine has a page pool for this many bytes and this odd a size at once.
  PoolOptions o = Options(3);
  o.huge_pages = HugePages::kRequire;
  const absl::Status status = Pool::Create(o).status();
  ASSERT_FALSE(status.ok()) << "192 KiB is not a multiple of any huge page size";
  EXPECT_THAT(std::string(status.message()), HasSubstr("--huge_pages=require"));

  o.huge_pages = HugePages::kPrefer;
  const std::unique_ptr<Pool> pool = MustPool(o);
  EXPECT_FALSE(pool->huge_pages());
  EXPECT_TRUE(pool->huge_pages_fell_back());
  o.huge_pages = HugePages::kOff;
  EXPECT_FALSE(MustPool(o)->huge_pages_fell_back());
}

TEST(PoolTest, EveryPageIsPresentAfterStart) {
  PoolOptions o = Options(32);
  o.arena_bytes = 8 * kSlab;
  const std::unique_ptr<Pool> pool = MustPool(o);
  ASSERT_EQ(pool->arenas().size(), 4u);
  for (const Arena& arena : pool->arenas()) {
    struct stat st;
    ASSERT_EQ(::fstat(arena.fd(), &st), 0);
    EXPECT_EQ(static_cast<uint64_t>(st.st_blocks) * 512, arena.bytes());
  }
}

TEST(PoolTest, TheNodeOfTheMachineCanBeNamed) {
  PoolOptions o = Options(2);
  o.numa_node = 0;
  EXPECT_TRUE(Pool::Create(o).ok());
}

TEST(PoolTest, RunsOfSlabsStayWithinAnArena) {
  PoolOptions o = Options(8);
  o.arena_bytes = 4 * kSlab;
  const std::unique_ptr<Pool> pool = MustPool(o);
  EXPECT_EQ(pool->Take(3), 0u);
  EXPECT_EQ(pool->Take(2), 4u) << "slab 3 and slab 4 lie in different arenas";
  EXPECT_EQ(pool->Take(1), 3u);
  EXPECT_EQ(pool->Take(3), std::nullopt);
  EXPECT_EQ(pool->Take(5), std::nullopt);
  pool->Give(0, 3);
  EXPECT_EQ(pool->Take(1), 0u) << "lowest address first";
  EXPECT_EQ(pool->slabs_free(), 4u);
}

TEST(SlabAllocatorTest, AllocationIsAllOrNothingAndNamesTheSizes) {
  const std::unique_ptr<Pool> pool = MustPool(Options(4));
  SlabAllocator a(*pool);
  std::vector<Frame> first, second;
  ASSERT_TRUE(Take(a, 16 * kKiB, 10, first).ok());
  const absl::Status status = Take(a, 16 * kKiB, 7, second);
  EXPECT_EQ(ErrorCodeOf(status), ErrorCode::kCapacity);
  EXPECT_TRUE(second.empty());
  EXPECT_THAT(std::string(status.message()), HasSubstr("7 frames of 16384 bytes (114688 bytes)"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("2 frames of that size and 1 slabs"));
  EXPECT_EQ(a.used_bytes(), 10 * 16 * kKiB);
  ExpectSums(*pool, a);
  EXPECT_TRUE(Take(a, 16 * kKiB, 6, second).ok()) << "all that is left";
  a.Unref(first);
  a.Unref(second);
  EXPECT_EQ(pool->slabs_free(), 4u);
  EXPECT_TRUE(a.Classes().empty());
}

TEST(SlabAllocatorTest, TailsAreOverheadAndTheLastFrameIsWhole) {
  const std::unique_ptr<Pool> pool = MustPool(Options(2));
  SlabAllocator a(*pool);
  std::vector<Frame> frames;
  constexpr uint64_t kStride = 12 * kKiB;  // 5 per slab, 4 KiB left over
  ASSERT_TRUE(Take(a, kStride, 10, frames).ok());
  EXPECT_EQ(a.overhead_bytes(), 2 * 4 * kKiB);
  EXPECT_EQ(a.free_bytes(), 0u);
  ExpectSums(*pool, a);
  std::set<std::byte*> starts;
  for (Frame f : frames) {
    std::byte* data = a.Data(f);
    const FrameAddress address = a.Address(f);
    EXPECT_EQ(data, pool->arenas()[address.arena.value()].base() + address.offset);
    EXPECT_LE(address.offset + kStride, pool->arenas()[0].bytes());
    data[0] = data[kStride - 1] = std::byte{0x5a};  // every byte of it is mapped
    starts.insert(data);
  }
  EXPECT_EQ(starts.size(), 10u);
}

TEST(SlabAllocatorTest, AFrameLargerThanASlabTakesAdjacentSlabs) {
  const std::unique_ptr<Pool> pool = MustPool(Options(8));
  SlabAllocator a(*pool);
  constexpr uint64_t kStride = 2 * kSlab + 4 * kKiB;  // 3 slabs
  std::vector<Frame> frames;
  ASSERT_TRUE(Take(a, kStride, 2, frames).ok());
  EXPECT_EQ(a.Address(frames[1]).offset, 3 * kSlab);
  EXPECT_EQ(a.overhead_bytes(), 2 * (kSlab - 4 * kKiB));
  ExpectSums(*pool, a);
  // Two slabs are left: enough of neither count nor adjacency.
  std::vector<Frame> more;
  EXPECT_EQ(ErrorCodeOf(Take(a, kStride, 1, more)), ErrorCode::kCapacity);
  // Six free slabs that are not adjacent by three hold no such frame, and what was tried is undone.
  a.Unref(std::span(frames).first(1));
  std::vector<Frame> one;
  ASSERT_TRUE(Take(a, kSlab, 1, one).ok());
  EXPECT_EQ(ErrorCodeOf(Take(a, kStride, 1, more)), ErrorCode::kCapacity);
  EXPECT_TRUE(more.empty());
  ExpectSums(*pool, a);
  a.Unref(one);
  ASSERT_TRUE(Take(a, kStride, 1, more).ok());
  EXPECT_EQ(a.Address(more[0]).offset, 0u);
}

TEST(SlabAllocatorTest, AFrameLargerThanAnArenaSaysSo) {
  PoolOptions o = Options(8);
  o.arena_bytes = 4 * kSlab;
  const std::unique_ptr<Pool> pool = MustPool(o);
  SlabAllocator a(*pool);
  std::vector<Frame> frames;
  const absl::Status status = Take(a, 5 * kSlab, 1, frames);
  EXPECT_EQ(ErrorCodeOf(status), ErrorCode::kCapacity);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--arena_bytes"));
  EXPECT_TRUE(a.Classes().empty());
}

TEST(SlabAllocatorTest, NeighbouringBlocksLieSideBySide) {
  const std::unique_ptr<Pool> pool = MustPool(Options(4));
  SlabAllocator a(*pool);
  constexpr uint64_t kStride = 4 * kKiB;  // 16 per slab
  std::vector<Frame> all;
  ASSERT_TRUE(Take(a, kStride, 32, all).ok());
  // Holes: frame 1, frames 3..4, frames 6..9 of the first slab.
  for (uint32_t i : {1, 3, 4, 6, 7, 8, 9}) a.Unref(std::span(all).subspan(i, 1));
  std::vector<Frame> two, four, scattered;
  ASSERT_TRUE(Take(a, kStride, 2, two).ok());
  EXPECT_EQ(two, (std::vector<Frame>{{0, 3}, {0, 4}})) << "the first run that holds both";
  ASSERT_TRUE(Take(a, kStride, 4, four).ok());
  EXPECT_EQ(four.front(), (Frame{0, 6}));
  EXPECT_EQ(four.back(), (Frame{0, 9}));
  // One hole is left; a run of 3 takes a new slab, so that it is not split.
  std::vector<Frame> three;
  ASSERT_TRUE(Take(a, kStride, 3, three).ok());
  EXPECT_EQ(three.front(), (Frame{2, 0}));
  // With no slab left even single holes are used.
  ASSERT_TRUE(Take(a, kStride, 16 + 13 + 1, scattered).ok());
  EXPECT_EQ(a.free_bytes(), 0u);
  ExpectSums(*pool, a);
}

TEST(SlabAllocatorTest, EmptySlabsServeAnotherFrameSize) {
  const std::unique_ptr<Pool> pool = MustPool(Options(2));
  SlabAllocator a(*pool);
  std::vector<Frame> small, large;
  ASSERT_TRUE(Take(a, 4 * kKiB, 32, small).ok());
  EXPECT_FALSE(Take(a, 32 * kKiB, 1, large).ok());
  a.Unref(std::span(small).first(16));
  EXPECT_TRUE(Take(a, 32 * kKiB, 2, large).ok());
  EXPECT_EQ(a.Classes().size(), 2u);
  ExpectSums(*pool, a);
}

TEST(SlabAllocatorTest, AFrameGoesBackWithItsLastReference) {
  const std::unique_ptr<Pool> pool = MustPool(Options(1));
  SlabAllocator a(*pool);
  for (uint64_t stride : {4 * kKiB, kSlab}) {  // many frames per slab, and one
    std::vector<Frame> frames;
    ASSERT_TRUE(Take(a, stride, 1, frames).ok());
    a.Ref(frames);
    a.Unref(frames);
    EXPECT_EQ(a.used_bytes(), stride);
    a.Unref(frames);
    EXPECT_EQ(a.used_bytes(), 0u);
  }
}

TEST(SlabAllocatorTest, QuarantineCountsWhatNothingElseHolds) {
  const std::unique_ptr<Pool> pool = MustPool(Options(1));
  SlabAllocator a(*pool);
  constexpr uint64_t kStride = 4 * kKiB;
  std::vector<Frame> frames;
  ASSERT_TRUE(Take(a, kStride, 3, frames).ok());  // the sequence's reference
  a.Ref(frames);                                  // the writer's
  a.Quarantine(frames);
  EXPECT_EQ(a.quarantined_bytes(), 0u) << "the sequence still holds them";
  a.Unref(std::span(frames).first(2));
  EXPECT_EQ(a.quarantined_bytes(), 2 * kStride);
  EXPECT_EQ(a.used_bytes(), 3 * kStride) << "quarantined is a part of used";
  a.Ref(std::span(frames).first(1));
  EXPECT_EQ(a.quarantined_bytes(), kStride);
  a.Unref(std::span(frames).first(1));
  EXPECT_EQ(a.quarantined_bytes(), 2 * kStride);
  a.Unquarantine(frames);
  EXPECT_EQ(a.quarantined_bytes(), 0u);
  a.Unref(frames);
  EXPECT_EQ(a.used_bytes(), kStride);
}

TEST(SlabAllocatorTest, MetadataStaysWithinItsBudget) {
  // Frames as large as their slab are the worst case: the whole slab record is one frame's.
  for (uint64_t stride : {4 * kKiB, 12 * kKiB, 32 * kKiB, kSlab}) {
    const std::unique_ptr<Pool> pool = MustPool(Options(64));
    SlabAllocator a(*pool);
    std::vector<Frame> frames;
    const uint32_t count = static_cast<uint32_t>(64 * (kSlab / stride));
    ASSERT_TRUE(Take(a, stride, count, frames).ok());
    const uint64_t bytes = a.metadata_bytes() + frames.capacity() * sizeof(Frame);
    EXPECT_LE(bytes, 64u * count) << "stride " << stride;
    EXPECT_GE(bytes, 4u * count) << "stride " << stride;
  }
}

TEST(SlabAllocatorTest, AFrameIsDirtyForAnotherTenantThanItsLast) {
  const std::unique_ptr<Pool> pool = MustPool(Options(4));
  SlabAllocator a(*pool);
  std::vector<Frame> ann, keep, bob;
  EXPECT_EQ(DirtyOf(a, 16 * kKiB, 3, kAnn, ann), 0u) << "fresh memory is clear";
  EXPECT_EQ(DirtyOf(a, 16 * kKiB, 1, kBob, keep), 0u);
  a.Unref(ann);
  ann.clear();
  EXPECT_EQ(DirtyOf(a, 16 * kKiB, 1, kAnn, ann), 0u) << "its own bytes";
  EXPECT_EQ(DirtyOf(a, 16 * kKiB, 2, kBob, bob), 2u);
  a.Unref(bob);
  a.Unref(ann);
  a.Unref(keep);
  // The slab is the pool's again, and held bytes of both.
  std::vector<Frame> large;
  EXPECT_EQ(DirtyOf(a, kSlab, 1, kAnn, large), 1u);
  EXPECT_EQ(DirtyOf(a, kSlab, 1, kAnn, large), 0u) << "the next slab was never used";
}

TEST(SlabAllocatorTest, BytesBehindTheFramesOfASlabAreRemembered) {
  const std::unique_ptr<Pool> pool = MustPool(Options(1));
  SlabAllocator a(*pool);
  std::vector<Frame> frames;
  EXPECT_EQ(DirtyOf(a, kSlab, 1, kAnn, frames), 0u);
  a.Unref(frames);
  frames.clear();
  // Bob's frames leave a tail of Ann's bytes.
  EXPECT_EQ(DirtyOf(a, 24 * kKiB, 2, kBob, frames), 2u);
  a.Unref(frames);
  frames.clear();
  EXPECT_EQ(DirtyOf(a, kSlab, 1, kBob, frames), 1u);
}

TEST(SlabAllocatorTest, WhatIsTooMuchLeavesFramesAsDirtyAsTheyWere) {
  const std::unique_ptr<Pool> pool = MustPool(Options(4));
  SlabAllocator a(*pool);
  std::vector<Frame> all, none, dirty;
  EXPECT_EQ(DirtyOf(a, kSlab, 4, kAnn, all), 0u);
  a.Unref(std::span(all).subspan(0, 1));
  a.Unref(std::span(all).subspan(2, 1));
  // Two slabs are free, but not side by side.
  EXPECT_FALSE(a.Allocate(2 * kSlab, 1, kBob, none, dirty).ok());
  EXPECT_TRUE(none.empty() && dirty.empty());
  std::vector<Frame> bob;
  EXPECT_EQ(DirtyOf(a, kSlab, 2, kBob, bob), 2u);
}

TEST(SlabAllocatorTest, TheScrubberClearsWhatIsFreeAndItStaysFree) {
  const std::unique_ptr<Pool> pool = MustPool(Options(4));
  SlabAllocator a(*pool);
  std::vector<Frame> ann, bob;
  EXPECT_EQ(DirtyOf(a, 16 * kKiB, 10, kAnn, ann), 0u);
  a.Unref(std::span(ann).subspan(1, 9));  // one slab keeps a frame, two are the pool's
  EXPECT_EQ(a.HoldDirty(kSlab), std::nullopt) << "one tenant alone needs nothing cleared";
  EXPECT_EQ(DirtyOf(a, kSlab, 1, kBob, bob), 1u) << "the slab of the lowest address";
  const uint64_t free = a.free_bytes();
  uint64_t cleared = 0;
  while (auto held = a.HoldDirty(32 * kKiB)) {
    EXPECT_EQ(a.free_bytes(), free) << "what is being cleared counts as free";
    ExpectSums(*pool, a);
    for (const auto& piece : held->memory) cleared += piece.size();
    a.Cleared(*held);
  }
  EXPECT_EQ(cleared, 3 * 16 * kKiB + kSlab);
  EXPECT_EQ(a.free_bytes(), free);
  EXPECT_EQ(DirtyOf(a, 16 * kKiB, 3 + 8, kBob, bob), 0u);
}

TEST(SlabAllocatorTest, WhatTheScrubberHoldsIsNotGivenOut) {
  const std::unique_ptr<Pool> pool = MustPool(Options(1));
  SlabAllocator a(*pool, ClearFrames::kAlways);
  std::vector<Frame> frames, more, dirty;
  EXPECT_EQ(DirtyOf(a, 16 * kKiB, 4, kAnn, frames), 0u);
  a.Unref(std::span(frames).subspan(0, 1));
  const auto held = a.HoldDirty(kSlab);
  ASSERT_TRUE(held.has_value());
  EXPECT_FALSE(a.Allocate(16 * kKiB, 1, kAnn, more, dirty).ok());
  a.Unref(std::span(frames).subspan(1));
  EXPECT_EQ(pool->slabs_free(), 0u) << "a frame of the slab is held";
  a.Cleared(*held);
  EXPECT_EQ(pool->slabs_free(), 1u);
  EXPECT_EQ(DirtyOf(a, 16 * kKiB, 4, kAnn, more), 4u) << "three were not cleared";
}

}  // namespace
}  // namespace oasiskv::server
