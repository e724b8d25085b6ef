// The core behind a real shm endpoint: connections, fences and quarantine meet as in the daemon.
#include <unistd.h>

#include <filesystem>

#include "common/fabric/shm/shm.h"
#include "tests/unit/server/core_fixture.h"

namespace oasiskv::server {
namespace {

class CoreOverShm : public CoreFixture {
 protected:
  void SetUp() override {
    CoreFixture::SetUp();
    path_ = std::filesystem::temp_directory_path() /
            ("oasiskv-core-" + std::to_string(::getpid()) + ".sock");
    fabric::ShmOptions options;
    options.socket_path = path_;
    absl::StatusOr<std::unique_ptr<fabric::Endpoint>> served =
        fabric::ServeShm(options, core_->Export(), *core_);
    ASSERT_TRUE(served.ok()) << served.status();
    endpoint_ = *std::move(served);
  }
  void TearDown() override {
    endpoint_.reset();
    core_.reset();
  }
  std::unique_ptr<fabric::Connection> MustConnect(fabric::Access access) {
    auto connection = fabric::ConnectShm(path_, core_->incarnation(), access);
    EXPECT_TRUE(connection.ok()) << connection.status();
    return connection.ok() ? *std::move(connection) : nullptr;
  }
  static std::shared_ptr<const fabric::GrantView> View(const wire::Grant& grant,
                                                       fabric::Access access) {
    return std::make_shared<fabric::GrantView>(
        fabric::GrantView{grant.id, grant.epoch, grant.word_slot, access,
                          SmallGeometry().frame_bytes(), grant.frames});
  }
  // The endpoint hears of a fence or a hang-up on its own thread.
  bool EventuallyUsed(uint64_t bytes) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (UsedBytes() != bytes) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      ::usleep(1000);
    }
    return true;
  }
  static MonotonicTime Soon() {
    return std::chrono::steady_clock::now() + std::chrono::seconds(20);
  }

  std::string path_;
  std::unique_ptr<fabric::Endpoint> endpoint_;
};

TEST_F(CoreOverShm, WhatAWriterWroteAReaderReadsUntilTheGrantEnds) {
  auto out = MustConnect(fabric::Access::kWrite), in = MustConnect(fabric::Access::kRead);
  OpenSpec spec = Spec("a", 2);
  spec.connection = out->connection_id();
  const OpenResult opened = MustOpen(spec);
  std::vector<std::byte> bytes(SmallGeometry().frame_bytes(), std::byte{0x3c});
  const fabric::WritePiece write{{1, 0, SmallGeometry().frame_bytes()}, bytes.data()};
  const auto writer = View(opened.grant, fabric::Access::kWrite);
  EXPECT_TRUE(out->Write(writer, std::span(&write, 1), Soon())->Wait().ok());
  out->FenceWriter(opened.grant.id);
  const LayerBlocks all{0, SmallGeometry().layers, 0, 2};
  ASSERT_TRUE(core_->Commit(Key(opened.grant), std::span(&all, 1), {}).ok());
  ASSERT_TRUE(Seal(opened, 2).ok());

  const AttachResult attached = MustAttach("a");
  const auto reader = View(attached.grant, fabric::Access::kRead);
  std::vector<std::byte> got(bytes.size());
  const fabric::ReadPiece read{{1, 0, SmallGeometry().frame_bytes()}, got.data()};
  EXPECT_TRUE(in->Read(reader, std::span(&read, 1), Soon())->Wait().ok());
  EXPECT_EQ(got, bytes);
  ASSERT_TRUE(core_->Abort({"a"}, Me()).ok());
  EXPECT_CODE(ErrorCode::kStale, in->Read(reader, std::span(&read, 1), Soon())->Wait());
  EXPECT_TRUE(EventuallyUsed(0));
}

TEST_F(CoreOverShm, FramesOfAWriterThatIsGoneComeBackWithItsConnection) {
  auto out = MustConnect(fabric::Access::kWrite);
  OpenSpec spec = Spec("a", 4);
  spec.connection = out->connection_id();
  MustOpen(spec);
  Serve(std::chrono::seconds(11));
  EXPECT_EQ(core_->Capacity().quarantined_bytes, 4 * FrameBytes());
  out.reset();
  EXPECT_TRUE(EventuallyUsed(0));
}

TEST_F(CoreOverShm, AReadersConnectionIsNoWriters) {
  auto in = MustConnect(fabric::Access::kRead);
  OpenSpec spec = Spec("a", 1);
  spec.connection = in->connection_id();
  ASSERT_NE(in->connection_id(), ConnectionId());
  EXPECT_CODE(ErrorCode::kPeerLost, core_->Open(spec).status());
}

}  // namespace
}  // namespace oasiskv::server
