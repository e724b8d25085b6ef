// The ucx fabric between two RDMA devices: a daemon's endpoint on rxe1, connections from rxe0.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/pause_point.h"
#include "tests/fabric/verbs_pool.h"
#include "tests/support/recording_authority.h"

namespace oasiskv::fabric::ucx {

using verbs::kFrameBytes;
using verbs::kFrames;
using verbs::kIncarnation;
using verbs::TestPool;

inline MonotonicTime In(int64_t millis) { return Clock::Real().Now() + Millis(millis); }
// Devices and processors are emulated.
inline MonotonicTime Soon() { return In(120'000); }

inline bool Eventually(const std::function<bool()>& condition) {
  const MonotonicTime give_up = Soon();
  while (!condition()) {
    if (Clock::Real().Now() > give_up) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

#define OASISKV_NEED_RXE()                                                             \
  if (!std::filesystem::exists("/sys/class/infiniband/rxe0") ||                        \
      !std::filesystem::exists("/sys/class/infiniband/rxe1")) {                        \
    GTEST_SKIP() << "needs the soft-RoCE devices rxe0 and rxe1; run the test through " \
                    "tests/fabric/in-rdma-guest";                                      \
  }

// What UCX may use in the worker that is made next: one device, and TCP on this machine.
inline void UseDevice(const char* device) {
  ::setenv("UCX_NET_DEVICES", absl::StrCat(device, ":1,lo").c_str(), 1);
  // Completions of soft-RoCE devices do not say what UCX compares there.
  ::setenv("UCX_UD_VERBS_ETH_DGID_CHECK", "n", 1);
}

// Drops what comes back to rxe0 over the cable: a daemon's device that says nothing more.
class Silence {
 public:
  Silence() { EXPECT_EQ(std::system("ip rule add pref 50 iif rdma0 blackhole"), 0); }
  ~Silence() { EXPECT_EQ(std::system("ip rule del pref 50"), 0); }
};

// Thread contract: safe for concurrent use.
//
// Resolves ranges in the pool, and remembers which connections were opened.
class PoolAuthority : public RecordingAuthority {
 public:
  explicit PoolAuthority(const TestPool& pool) : pool_(pool) {}
  absl::StatusOr<PinnedRanges> Authorize(GrantId, Epoch, Access,
                                         std::span<const RemoteRange> ranges) override {
    PinnedRanges out;
    for (const RemoteRange& range : ranges) {
      out.memory.emplace_back(pool_.frame(range.block) + range.offset, range.length);
    }
    return out;
  }
  uint64_t GrantWord(GrantId grant) const override { return 1000 + grant.value(); }
  void ConnectionOpened(ConnectionId connection) override {
    MutexLock lock(mutex_);
    opened_.push_back(connection);
  }
  std::vector<ConnectionId> opened() const {
    MutexLock lock(mutex_);
    return opened_;
  }

 private:
  const TestPool& pool_;
  mutable Mutex mutex_;
  std::vector<ConnectionId> opened_ ABSL_GUARDED_BY(mutex_);
};

class UcxRdmaTest : public ::testing::Test {
 protected:
  void SetUp() override { OASISKV_NEED_RXE(); }
  void Serve(bool one_sided = true) {
    UseDevice("rxe1");
    auto server =
        ServeUcx({.host = "127.0.0.1", .one_sided = one_sided}, pool_.Export(), authority_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    address_ = server_->address();
  }
  std::unique_ptr<Connection> Connect(bool one_sided = true) {
    UseDevice("rxe0");
    auto connection = ConnectUcx({.address = address_,
                                  .incarnation = kIncarnation,
                                  .connect_timeout = std::chrono::seconds(60),
                                  .one_sided = one_sided});
    EXPECT_TRUE(connection.ok()) << connection.status();
    return connection.ok() ? *std::move(connection) : nullptr;
  }
  // Pieces of `bytes` bytes, one out of each of `blocks` frames, at changing offsets.
  static std::vector<ReadPiece> Scattered(uint32_t blocks, uint32_t bytes,
                                          std::vector<std::byte>& into) {
    into.assign(uint64_t{blocks} * bytes, std::byte{0x5a});
    std::vector<ReadPiece> pieces;
    for (uint32_t i = 0; i < blocks; ++i) {
      const uint32_t offset = i * 4099 % (static_cast<uint32_t>(kFrameBytes) - bytes + 1);
      pieces.push_back({{i % kFrames, offset, bytes}, into.data() + uint64_t{i} * bytes});
    }
    return pieces;
  }
  static bool Hold(const std::vector<ReadPiece>& pieces) {
    for (const ReadPiece& piece : pieces) {
      if (!TestPool::Holds(piece.into, piece.from)) return false;
    }
    return true;
  }
  static bool Untouched(const std::vector<std::byte>& bytes) {
    for (const std::byte b : bytes) {
      if (b != std::byte{0x5a}) return false;
    }
    return true;
  }
  void TearDown() override {
    EXPECT_EQ(PausePoints::Waiting(), 0);
    server_.reset();
  }

  TestPool pool_;
  PoolAuthority authority_{pool_};
  std::unique_ptr<UcxEndpoint> server_;
  std::string address_;
};

}  // namespace oasiskv::fabric::ucx
