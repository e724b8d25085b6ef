// What fetch and attach stand on: a daemon, a client, and a sequence full of known bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "oasiskv/client.h"
#include "tools/bench/child_process.h"

namespace oasiskv::bench {

struct TestbedOptions {
  // Of the flags that every operation with a daemon takes; the pool holds `kv_bytes` of entries.
  static absl::StatusOr<TestbedOptions> FromFlags(uint64_t kv_bytes);

  // Of a running daemon; empty: `daemon` is started, which is the path of an oasiskvd.
  std::string address, daemon;
  uint64_t pool_bytes = 0;
  std::string fabric = "auto";
  // verbs: the client's port, and the device of a daemon that is started here.
  std::string verbs_device, daemon_verbs_device;
  uint32_t verbs_port = 0;
  int64_t verbs_gid_index = -1;
  Duration verbs_peer_timeout{0};  // 0: the client's own
  // ucx: UCX_NET_DEVICES of the client and of a daemon that is started here. Empty: as the
  // environment says.
  std::string ucx_net_devices, daemon_ucx_net_devices;
  std::string clear_frames = "tenant";  // of a daemon that is started here
};

// The bytes of entry `number` of a bench sequence, so that a reader can check them without a copy:
// 64-bit words Word(number, 0), Word(number, 1), ...
inline uint64_t Word(uint64_t number, uint64_t index) {
  return (number + 1) * 0x9E3779B97F4A7C15u + index * 0xD1B54A32D192ED03u;
}
void FillEntry(uint64_t number, std::span<std::byte> entry);
bool EntryIsRight(uint64_t number, std::span<const std::byte> entry);

// Thread contract: used by one thread. A directory of its own, which is removed with everything in
// it at the end.
class TemporaryDirectory {
 public:
  static absl::StatusOr<std::unique_ptr<TemporaryDirectory>> Create();
  explicit TemporaryDirectory(std::string path) : path_(std::move(path)) {}
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory();
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

// Thread contract: used by one thread.
class Testbed {
 public:
  static absl::StatusOr<Testbed> Create(const TestbedOptions& options);

  // Writes and seals a sequence of `blocks` blocks whose entries hold FillEntry(EntryNumber(...)).
  absl::Status PutSequence(const std::string& name, const Geometry& geometry, uint32_t blocks);
  absl::StatusOr<Reader> Attach(const std::string& name, const Geometry& geometry);
  // Gives the sequence's memory back.
  absl::Status Drop(const std::string& name);

  Client& client() const { return *client_; }
  std::string fabric() const { return client_->FabricName(); }  // "shm", "ucx" or "verbs"
  // 0: the daemon is not ours, its CPU time is not known.
  int daemon_pid() const { return daemon_ ? daemon_->pid() : 0; }

  static uint64_t EntryNumber(const Geometry& g, uint32_t block, uint32_t layer, uint32_t head) {
    return (uint64_t{block} * g.layers + layer) * g.kv_heads + head;
  }

 private:
  Testbed() = default;

  std::unique_ptr<TemporaryDirectory> directory_;  // the daemon's socket lies in it
  std::optional<ChildProcess> daemon_;             // outlives the client
  std::unique_ptr<Client> client_;
};

}  // namespace oasiskv::bench
