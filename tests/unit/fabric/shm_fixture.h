// A small pool in memfds, an authority that records, and other processes: what every test of the
// shm fabric needs.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/fabric/endpoint.h"
#include "common/fabric/shm/server.h"
#include "common/fabric/shm/shm.h"
#include "common/mapped_memory.h"
#include "common/mutex.h"
#include "common/pause_point.h"
#include "oasiskv/error.h"
#include "tests/integration/eventually.h"
#include "tests/support/recording_authority.h"

namespace oasiskv::fabric::shm {

constexpr uint64_t kFrameBytes = 64 * 1024;
constexpr uint64_t kArenaBytes = 16 * kFrameBytes;
constexpr uint32_t kArenas = 2;
constexpr uint32_t kWords = 512;
constexpr uint64_t kIncarnation = 0x1234'5678'9abc'def0;

inline MonotonicTime Soon() { return Clock::Real().Now() + std::chrono::seconds(60); }

using ::oasiskv::testing::Eventually;

// Thread contract: set up by one thread; words may be changed by any.
class TestPool {
 public:
  TestPool() {
    for (uint32_t i = 0; i < kArenas; ++i) {
      fds_.push_back(*CreateMemfd("test-arena", kArenaBytes, PageKind::kNormal));
      arenas_.push_back(*Mapping::Map(fds_.back().get(), kArenaBytes, Protection::kReadWrite));
      for (uint64_t at = 0; at < kArenaBytes; ++at) arenas_[i].data()[at] = Pattern(i, at);
    }
    words_fd_ = *CreateMemfd("test-words", kWords * sizeof(uint64_t), PageKind::kNormal);
    words_ = *Mapping::Map(words_fd_.get(), kWords * sizeof(uint64_t), Protection::kReadWrite);
  }

  static std::byte Pattern(uint32_t arena, uint64_t at) {
    return static_cast<std::byte>((at * 31 + (at >> 8) * 7 + (at >> 16) * 131 + arena * 17) & 0xff);
  }
  ExportedMemory Export() const {
    ExportedMemory memory;
    for (uint32_t i = 0; i < kArenas; ++i) {
      memory.arenas.push_back({ArenaId(i), fds_[i].get(), arenas_[i].data(), kArenaBytes});
    }
    memory.words_fd = words_fd_.get();
    memory.words_bytes = kWords * sizeof(uint64_t);
    memory.incarnation = kIncarnation;
    return memory;
  }
  std::byte* arena(uint32_t i) const { return arenas_[i].data(); }
  void SetWord(WordSlot slot, uint64_t value) {
    __atomic_store_n(reinterpret_cast<uint64_t*>(words_.data()) + slot.value(), value,
                     __ATOMIC_RELEASE);
  }
  uint64_t Word(WordSlot slot) const {
    return __atomic_load_n(reinterpret_cast<uint64_t*>(words_.data()) + slot.value(),
                           __ATOMIC_ACQUIRE);
  }

  // A valid grant of `blocks` frames: block b lies in arena b % 2, frame b / 2.
  std::shared_ptr<GrantView> Grant(uint64_t id, Access access, uint32_t blocks = 2 * 16) {
    auto grant = std::make_shared<GrantView>();
    grant->id = GrantId(id);
    grant->epoch = Epoch(1000 + id);
    grant->word_slot = WordSlot(static_cast<uint32_t>(id % kWords));
    grant->access = access;
    grant->frame_bytes = kFrameBytes;
    for (uint32_t b = 0; b < blocks; ++b) {
      grant->frames.push_back({ArenaId(b % 2), (b / 2) * kFrameBytes});
    }
    SetWord(grant->word_slot, grant->epoch.value());
    return grant;
  }
  static std::byte Expected(const RemoteRange& range, uint64_t i) {
    return Pattern(range.block % 2, (range.block / 2) * kFrameBytes + range.offset + i);
  }

 private:
  std::vector<UniqueFd> fds_;
  std::vector<Mapping> arenas_;
  UniqueFd words_fd_;
  Mapping words_;
};

// A folder of its own, which other users may enter, for the socket.
class SocketFolder {
 public:
  SocketFolder() {
    std::string name = absl::StrCat(::testing::TempDir(), "/shmXXXXXX");
    folder_ = ::mkdtemp(name.data());
    ::chmod(folder_.c_str(), 0755);
  }
  ~SocketFolder() {
    ::unlink(path().c_str());
    ::rmdir(folder_.c_str());
  }
  std::string path() const { return absl::StrCat(folder_, "/s"); }

 private:
  std::string folder_;
};

// A child that runs `body` and exits with its result; killed with this object. Make it before any
// thread.
class Child {
 public:
  explicit Child(const std::function<int()>& body) : pid_(::fork()) {
    if (pid_ == 0) ::_exit(body());
  }
  ~Child() {
    if (pid_ <= 0) return;
    Signal(SIGKILL);
    Exit();
  }
  void Signal(int number) const {
    if (pid_ > 0) ::kill(pid_, number);  // -1, a fork that failed, would mean every process
  }
  // The exit code; -1 when it did not exit by itself.
  int Exit() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_;
};

// A pool served by this process.
class ShmTest : public ::testing::Test {
 protected:
  void Serve(const ServerLimits& limits = {}, ShmOptions options = {}) {
    options.socket_path = folder_.path();
    auto server = Server::Start(options, pool_.Export(), authority_, limits);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  std::unique_ptr<Connection> Connect(Access access) {
    auto connection = ConnectShm(folder_.path(), kIncarnation, access);
    EXPECT_TRUE(connection.ok()) << connection.status();
    return connection.ok() ? *std::move(connection) : nullptr;
  }
  void TearDown() override { EXPECT_EQ(PausePoints::Waiting(), 0); }

  SocketFolder folder_;
  TestPool pool_;
  RecordingAuthority authority_;
  std::unique_ptr<Server> server_;
};

}  // namespace oasiskv::fabric::shm
