// Memory that a test's daemon serves over verbs, shared with other processes by its descriptors,
// and a control plane that is a socket or a plain call.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/fabric/verbs/hello.h"
#include "common/fabric/verbs/verbs.h"
#include "common/mapped_memory.h"
#include "common/mutex.h"
#include "oasiskv/error.h"
#include "tests/support/recording_authority.h"

namespace oasiskv::fabric::verbs {

constexpr uint64_t kFrameBytes = 256 * 1024;
constexpr uint32_t kFrames = 128;  // over two arenas in turn
constexpr uint32_t kArenas = 2;
constexpr uint64_t kArenaBytes = kFrames / kArenas * kFrameBytes;
constexpr uint32_t kWords = 512;
constexpr uint64_t kIncarnation = 4711;

// Thread contract: set up by one thread; words may be changed by any.
class TestPool {
 public:
  // Of a process that makes the memory, or of one that got the descriptors (two arenas, then the
  // words).
  TestPool() {
    for (uint32_t i = 0; i < kArenas; ++i) {
      fds_.push_back(*CreateMemfd("arena", kArenaBytes, PageKind::kNormal));
    }
    fds_.push_back(*CreateMemfd("words", kWords * sizeof(uint64_t), PageKind::kNormal));
    Map();
    for (uint32_t b = 0; b < kFrames; ++b) {
      for (uint64_t at = 0; at < kFrameBytes; ++at) frame(b)[at] = Pattern(b, at);
    }
  }
  explicit TestPool(std::vector<UniqueFd> fds) : fds_(std::move(fds)) { Map(); }

  static std::byte Pattern(uint32_t block, uint64_t at) {
    return static_cast<std::byte>((at * 31 + (at >> 8) * 7 + (at >> 16) * 131 + block * 17) & 0xff);
  }
  static bool Holds(const std::byte* bytes, const RemoteRange& range) {
    for (uint32_t i = 0; i < range.length; ++i) {
      if (bytes[i] != Pattern(range.block, uint64_t{range.offset} + i)) return false;
    }
    return true;
  }
  std::byte* frame(uint32_t block) const {
    return maps_[block % kArenas].data() + block / kArenas * kFrameBytes;
  }
  int fd(size_t i) const { return fds_[i].get(); }
  ExportedMemory Export(uint64_t incarnation = kIncarnation) const {
    ExportedMemory memory;
    for (uint32_t i = 0; i < kArenas; ++i) {
      memory.arenas.push_back({ArenaId(i), fds_[i].get(), maps_[i].data(), kArenaBytes});
    }
    memory.words_fd = fds_[kArenas].get();
    memory.words_bytes = kWords * sizeof(uint64_t);
    memory.incarnation = incarnation;
    return memory;
  }
  void SetWord(WordSlot slot, uint64_t value) {
    __atomic_store_n(reinterpret_cast<uint64_t*>(maps_[kArenas].data()) + slot.value(), value,
                     __ATOMIC_RELEASE);
  }
  std::shared_ptr<GrantView> Grant(uint64_t id, Access access) {
    auto grant = std::make_shared<GrantView>();
    grant->id = GrantId(id);
    grant->epoch = Epoch(1000 + id);
    grant->word_slot = WordSlot(static_cast<uint32_t>(id % kWords));
    grant->access = access;
    grant->frame_bytes = kFrameBytes;
    for (uint32_t b = 0; b < kFrames; ++b) {
      grant->frames.push_back({ArenaId(b % kArenas), b / kArenas * kFrameBytes});
    }
    SetWord(grant->word_slot, grant->epoch.value());
    return grant;
  }

 private:
  void Map() {
    for (const UniqueFd& fd : fds_) {
      const uint64_t bytes = maps_.size() < kArenas ? kArenaBytes : kWords * sizeof(uint64_t);
      maps_.push_back(*Mapping::Map(fd.get(), bytes, Protection::kReadWrite));
    }
  }
  std::vector<UniqueFd> fds_;
  std::vector<Mapping> maps_;
};

// Thread contract: as ControlPlane. Calls an endpoint of this process; tests bend what it says.
class DirectControl : public ControlPlane {
 public:
  explicit DirectControl(Endpoint& endpoint) : endpoint_(endpoint) {}
  absl::StatusOr<std::string> Accept(const std::string& hello) override {
    return endpoint_.Accept(hello);
  }
  void Fence(ConnectionId connection, GrantId grant) override {
    endpoint_.Fence(connection, grant);
  }
  void Close(ConnectionId connection) override { endpoint_.Close(connection); }

 private:
  Endpoint& endpoint_;
};

// What goes over a test's control socket: a message is one packet, an operation and bytes.
enum class Operation : char {
  kAccept = 'A',
  kFence = 'F',
  kClose = 'C',
  kError = 'E',
  kReady = 'R'
};

inline bool SendPacket(int socket, Operation operation, absl::string_view bytes) {
  const std::string packet = std::string(1, static_cast<char>(operation)) + std::string(bytes);
  return ::send(socket, packet.data(), packet.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(packet.size());
}
// The empty string when the other side is gone.
inline std::string ReceivePacket(int socket) {
  std::string packet(64 * 1024, '\0');
  const ssize_t got = ::recv(socket, packet.data(), packet.size(), 0);
  packet.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return packet;
}

// Thread contract: as ControlPlane. Asks a process at the other end of a socket.
class SocketControl : public ControlPlane {
 public:
  explicit SocketControl(int socket) : socket_(socket) {}
  absl::StatusOr<std::string> Accept(const std::string& hello) override {
    MutexLock lock(mutex_);
    SendPacket(socket_, Operation::kAccept, hello);
    const std::string answer = ReceivePacket(socket_);
    if (answer.empty()) return MakeError(ErrorCode::kPeerLost, "the test's daemon is gone");
    if (answer[0] == static_cast<char>(Operation::kError)) {
      return MakeError(ErrorCode::kInternal, answer.substr(1));
    }
    return answer.substr(1);
  }
  void Fence(ConnectionId connection, GrantId grant) override {}
  void Close(ConnectionId connection) override {
    const uint64_t id = connection.value();
    MutexLock lock(mutex_);
    SendPacket(socket_, Operation::kClose, {reinterpret_cast<const char*>(&id), sizeof(id)});
  }

 private:
  const int socket_;
  Mutex mutex_;
};

}  // namespace oasiskv::fabric::verbs
