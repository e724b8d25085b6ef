// The caller's memory: registered, registered in part, not at all, and a device's.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "common/fabric/verbs/inventory.h"
#include "tests/fabric/verbs_fixture.h"

namespace oasiskv::fabric::verbs {
namespace {

using ::testing::HasSubstr;

class VerbsBuffers : public VerbsTest {
 protected:
  void SetUp() override {
    OASISKV_NEED_RXE();
    Serve();
  }
};

TEST_F(VerbsBuffers, BuffersThatNobodyRegisteredWorkToo) {
  auto reader = Connect(Access::kRead);
  auto writer = Connect(Access::kWrite);
  std::vector<std::byte> target(kFrameBytes + 100'000);
  const std::vector<ReadPiece> reads = {{{5, 0, kFrameBytes}, target.data()},
                                        {{6, 7, 99'991}, target.data() + kFrameBytes}};
  ASSERT_EQ(reader->Read(pool_.Grant(1, Access::kRead), reads, Soon())->Wait(), absl::OkStatus());
  for (const ReadPiece& piece : reads) EXPECT_TRUE(TestPool::Holds(piece.into, piece.from));
  // Half of the buffer registered: what does not lie in it wholly is copied.
  std::fill(target.begin(), target.end(), std::byte{0});
  auto half = reader->RegisterBuffer(std::span<std::byte>(target).first(kFrameBytes / 2));
  ASSERT_TRUE(half.ok()) << half.status();
  ASSERT_EQ(reader->Read(pool_.Grant(1, Access::kRead), reads, Soon())->Wait(), absl::OkStatus());
  for (const ReadPiece& piece : reads) EXPECT_TRUE(TestPool::Holds(piece.into, piece.from));

  std::vector<std::byte> source(kFrameBytes, std::byte{0x3c});
  const std::vector<WritePiece> writes = {{{9, 100, 200'000}, source.data()}};
  ASSERT_EQ(writer->Write(pool_.Grant(2, Access::kWrite), writes, Soon())->Wait(),
            absl::OkStatus());
  EXPECT_TRUE(std::equal(source.begin(), source.begin() + 200'000, pool_.frame(9) + 100));
  EXPECT_EQ(pool_.frame(9)[99], TestPool::Pattern(9, 99));
  EXPECT_EQ(pool_.frame(9)[200'100], TestPool::Pattern(9, 200'100));
}

TEST_F(VerbsBuffers, WhatMovedDirectlyIsCountedApart) {
  auto reader = Connect(Access::kRead);
  std::vector<std::byte> target(2 * kFrameBytes);
  const auto half = reader->RegisterBuffer(std::span<std::byte>(target).first(kFrameBytes));
  ASSERT_TRUE(half.ok()) << half.status();
  const std::vector<ReadPiece> pieces = {{{0, 0, 10'000}, target.data()},
                                         {{1, 0, 700}, target.data() + kFrameBytes}};
  ASSERT_EQ(reader->Read(pool_.Grant(1, Access::kRead), pieces, Soon())->Wait(), absl::OkStatus());
  EXPECT_EQ(reader->Stats().bytes_direct, 10'000u);
  EXPECT_EQ(reader->Stats().bytes_bounced, 700u);
}

// soft-RoCE takes no memory of other devices; what lacks is named, by the connection and the probe.
TEST_F(VerbsBuffers, MemoryOfADeviceIsRefusedWithTheCause) {
  auto reader = Connect(Access::kRead);
  DeviceBuffer memory{.dmabuf_fd = pool_.fd(0), .offset = 0, .bytes = 4096, .address = 1 << 20};
  const absl::Status refused = reader->RegisterDeviceBuffer(memory).status();
  EXPECT_EQ(ErrorCodeOf(refused), ErrorCode::kUnsupported);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("'rxe0' registers no dma-buf memory"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr(std::strerror(EOPNOTSUPP)));
  const auto taken = PortToTake({.device = "rxe1"});
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_THAT(std::string(taken->device_memory.message()),
              HasSubstr("'rxe1' registers no dma-buf memory"));
  memory.dmabuf_fd = -1;
  EXPECT_EQ(ErrorCodeOf(reader->RegisterDeviceBuffer(memory).status()),
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace oasiskv::fabric::verbs
