// Clients that UCX reaches over lanes whose device checks keys: they get the keys of the arenas and
// of the grant words, and an id under which the daemon knows that they can write.
#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/fabric/ucx/server.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric::ucx {
namespace {

template <typename T>
void Append(std::vector<std::byte>& out, const T& value) {
  const auto* first = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), first, first + sizeof(value));
}

}  // namespace

absl::Status Server::RegisterMemory() {
  if (!worker_->remote_memory() || memory_.arenas.empty()) return absl::OkStatus();
  if (memory_.arenas.size() >= kMaxRegions) {
    return MakeError(ErrorCode::kCapacity,
                     absl::StrCat(memory_.arenas.size(), " arenas; at most ", kMaxRegions - 1,
                                  " are given keys of (raise --arena_bytes)"));
  }
  // Mapped writable, for UCX registers nothing that cannot be written to.
  OASISKV_ASSIGN_OR_RETURN(
      words_, Mapping::Map(memory_.words_fd, memory_.words_bytes, Protection::kReadWrite));
  const auto add = [this](std::span<std::byte> memory, const std::string& what) -> absl::Status {
    OASISKV_ASSIGN_OR_RETURN(ucp_mem* const handle, worker_->Register(memory, what));
    OASISKV_ASSIGN_OR_RETURN(const std::vector<std::byte> key, worker_->PackKey(handle));
    KeyHead head;
    head.address = reinterpret_cast<uint64_t>(memory.data());
    head.bytes = memory.size();
    head.key_bytes = static_cast<uint32_t>(key.size());
    Append(keys_, head);
    keys_.insert(keys_.end(), key.begin(), key.end());
    return absl::OkStatus();
  };
  for (const ExportedMemory::Arena& arena : memory_.arenas) {
    OASISKV_RETURN_IF_ERROR(
        add({arena.base, arena.bytes}, absl::StrCat("arena ", arena.id.value())));
  }
  return add({words_.data(), words_.size()}, "the grant words");
}

void Server::OnJoin(Peer& peer, const Arrival& arrival) {
  Join join;
  if (!peer.offered() || !ParseHeader(arrival.header.data(), arrival.header.size(), join)) {
    return Malformed(&peer, arrival, "a join that was not asked for, or a short one");
  }
  peer.set_offered(false);
  if (join.takes_keys != 0) GiveKeys(peer);
  CountTransport(peer, 1);
  LogTransport(peer);
}

void Server::GiveKeys(Peer& peer) {
  uint64_t id = 0;
  while (id == 0) {
    if (::getrandom(&id, sizeof(id), 0) != sizeof(id)) {
      return peer.Break("the kernel gives no random bytes for its id");
    }
  }
  peer.set_connection(ConnectionId(id));
  {
    MutexLock lock(mutex_);
    connections_.insert(peer.connection());
  }
  // Before the client learns of it: from now on it can write, whatever it says it wants.
  authority_.ConnectionOpened(peer.connection());
  peer.SendKeys(static_cast<uint32_t>(memory_.arenas.size() + 1), keys_);
}

void Server::OnFence(Peer& peer, const Arrival& arrival) {
  Fence fence;
  if (peer.connection().value() == 0 ||
      !ParseHeader(arrival.header.data(), arrival.header.size(), fence)) {
    return Malformed(&peer, arrival, "a fence of a client without keys, or a short one");
  }
  counters_.requests.fetch_add(1, std::memory_order_relaxed);
  authority_.WriterFenced(peer.connection(), GrantId(fence.grant));
}

bool Server::Close(ConnectionId connection) {
  {
    MutexLock lock(mutex_);
    if (connections_.erase(connection) == 0) return false;
    unfenced_.push_back(connection);
  }
  worker_->Wake();
  return true;
}

void Server::BreakUnfenced() {
  std::vector<ConnectionId> connections;
  {
    MutexLock lock(mutex_);
    if (unfenced_.empty()) return;
    connections.swap(unfenced_);
  }
  for (const auto& [endpoint, peer] : peers_) {
    if (std::find(connections.begin(), connections.end(), peer->connection()) !=
        connections.end()) {
      peer->Break("it did not fence a revoked writer's grant in time");
    }
  }
}

void Server::CountTransport(const Peer& peer, int64_t by) {
  MutexLock lock(mutex_);
  transports_[{peer.lanes().Transport(), peer.connection().value() != 0}] += by;
}

void Server::LogTransport(const Peer& peer) const {
  LogInfo("ucx",
          absl::StrCat("connection of ", peer.address(), ": ", peer.lanes().TransportAndDevice(),
                       ", ", peer.connection().value() != 0 ? "one-sided" : "active messages"));
}

}  // namespace oasiskv::fabric::ucx
