// What every test of the ucx fabric needs: memory to serve, an authority that the test controls, and
// a served connection.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/fabric/ucx/ucx.h"
#include "common/mutex.h"
#include "common/pause_point.h"
#include "oasiskv/error.h"
#include "tests/integration/eventually.h"

namespace oasiskv::fabric::ucx {

constexpr uint64_t kFrameBytes = uint64_t{1} << 20;
constexpr uint32_t kFrames = 16;
constexpr uint64_t kIncarnation = 77;

inline MonotonicTime In(int64_t millis) { return Clock::Real().Now() + Millis(millis); }

using ::oasiskv::testing::Eventually;

inline std::byte Pattern(uint32_t block, uint64_t at) {
  return static_cast<std::byte>((at * 31 + (at >> 8) * 7 + (at >> 16) * 131 + block * 17) & 0xff);
}

// Thread contract: safe for concurrent use.
//
// Grants over kFrames frames that hold Pattern. It refuses what it is told to, checks ids, epochs
// and bounds like the real one, and counts the pins that are out.
class FakeAuthority : public GrantAuthority {
 public:
  FakeAuthority() : memory_(kFrames * kFrameBytes) {
    for (uint32_t block = 0; block < kFrames; ++block) {
      for (uint64_t at = 0; at < kFrameBytes; ++at) frame(block)[at] = Pattern(block, at);
    }
  }

  std::byte* frame(uint32_t block) { return memory_.data() + block * kFrameBytes; }
  std::shared_ptr<GrantView> Grant(uint64_t id, Access access) {
    auto view = std::make_shared<GrantView>();
    view->id = GrantId(id);
    view->epoch = Epoch(1000 + id);
    view->access = access;
    view->frame_bytes = kFrameBytes;
    for (uint32_t block = 0; block < kFrames; ++block) {
      view->frames.push_back({ArenaId(0), block * kFrameBytes});
    }
    SetWord(view->id, view->epoch.value());
    return view;
  }
  void SetWord(GrantId grant, uint64_t word) {
    MutexLock lock(mutex_);
    words_[grant] = word;
  }
  void Refuse(std::optional<absl::Status> status) {
    MutexLock lock(mutex_);
    refusal_ = std::move(status);
  }
  long pins() const { return pin_.use_count() - 1; }

  absl::StatusOr<PinnedRanges> Authorize(GrantId grant, Epoch epoch, Access,
                                         std::span<const RemoteRange> ranges) override {
    MutexLock lock(mutex_);
    if (refusal_.has_value()) return *refusal_;
    auto it = words_.find(grant);
    if (it == words_.end()) return MakeError(ErrorCode::kNotFound, "no such grant");
    if (it->second != epoch.value()) return MakeError(ErrorCode::kStale, "another epoch");
    PinnedRanges out;
    for (const RemoteRange& range : ranges) {
      if (range.block >= kFrames || range.length == 0 ||
          uint64_t{range.offset} + range.length > kFrameBytes) {
        return MakeError(ErrorCode::kOutOfRange, "a range lies outside");
      }
      out.memory.emplace_back(frame(range.block) + range.offset, range.length);
    }
    out.pin = pin_;
    return out;
  }
  uint64_t GrantWord(GrantId grant) const override {
    MutexLock lock(mutex_);
    auto it = words_.find(grant);
    return it == words_.end() ? 0 : it->second;
  }
  void WriterFenced(ConnectionId, GrantId) override {}
  void ConnectionClosed(ConnectionId) override {}

 private:
  std::vector<std::byte> memory_;
  const std::shared_ptr<const int> pin_ = std::make_shared<int>(0);
  mutable Mutex mutex_;
  std::map<GrantId, uint64_t> words_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> refusal_ ABSL_GUARDED_BY(mutex_);
};

// The words of grants 1 to 9, which every served process gives.
inline void GrantAll(FakeAuthority& authority) {
  for (uint64_t id = 1; id < 10; ++id) (void)authority.Grant(id, Access::kRead);
}

// Destinations for a batch of reads, filled with a byte that Pattern does not leave in long runs.
class Buffers {
 public:
  static constexpr std::byte kFill{0xa5};

  void Add(RemoteRange from) {
    ranges_.push_back(from);
    bytes_ += from.length;
  }
  std::vector<ReadPiece> Pieces() {
    memory_.assign(bytes_, kFill);
    std::vector<ReadPiece> pieces;
    uint64_t at = 0;
    for (const RemoteRange& range : ranges_) {
      pieces.push_back({range, memory_.data() + at});
      at += range.length;
    }
    return pieces;
  }
  void Fill() { std::memset(memory_.data(), static_cast<int>(kFill), memory_.size()); }
  bool Untouched() const {
    for (const std::byte b : memory_) {
      if (b != kFill) return false;
    }
    return true;
  }
  bool HoldPattern() const {
    uint64_t at = 0;
    for (const RemoteRange& range : ranges_) {
      for (uint32_t i = 0; i < range.length; ++i, ++at) {
        if (memory_[at] != Pattern(range.block, uint64_t{range.offset} + i)) return false;
      }
    }
    return true;
  }
  uint64_t bytes() const { return bytes_; }

 private:
  std::vector<RemoteRange> ranges_;
  std::vector<std::byte> memory_;
  uint64_t bytes_ = 0;
};

// A server in this process.
class UcxTest : public ::testing::Test {
 protected:
  void Serve(const UcxEndpointOptions& options = {.host = "127.0.0.1"}) {
    ExportedMemory memory;
    memory.incarnation = kIncarnation;
    auto server = ServeUcx(options, memory, authority_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  std::unique_ptr<Connection> Connect(uint64_t window_bytes = uint64_t{4} << 20) {
    auto connection = ConnectUcx(
        {.address = server_->address(), .incarnation = kIncarnation, .window_bytes = window_bytes});
    EXPECT_TRUE(connection.ok()) << connection.status();
    return connection.ok() ? *std::move(connection) : nullptr;
  }
  static absl::Status ReadAll(Connection& connection, std::shared_ptr<const GrantView> grant,
                              Buffers& buffers) {
    return connection.Read(std::move(grant), buffers.Pieces(), In(60'000))->Wait();
  }
  // A read of its own goes through, so whatever was on its way to the client before has arrived.
  void Settle(Connection& connection) {
    Buffers buffers;
    buffers.Add({0, 0, 100});
    ASSERT_TRUE(ReadAll(connection, authority_.Grant(999, Access::kRead), buffers).ok());
    ASSERT_TRUE(buffers.HoldPattern());
  }
  void TearDown() override {
    EXPECT_EQ(PausePoints::Waiting(), 0);
    server_.reset();
    EXPECT_EQ(authority_.pins(), 0);
  }

  FakeAuthority authority_;
  std::unique_ptr<Endpoint> server_;
};

}  // namespace oasiskv::fabric::ucx
