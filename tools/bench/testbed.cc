#include "tools/bench/testbed.h"

#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/fabric/registry.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"
#include "tools/bench/operation.h"

ABSL_FLAG(std::string, address, "",
          "Control address of a running daemon. Empty: one is started, and ended afterwards.");
ABSL_FLAG(std::string, daemon, "", "The oasiskvd to start. Empty: the one beside this program.");
ABSL_FLAG(std::string, fabric, "auto", "Fabric of the client: auto, shm, ucx or verbs.");
ABSL_FLAG(std::string, verbs_device, "",
          "verbs: the client's device. Empty: the first with an active port.");
ABSL_FLAG(std::string, daemon_verbs_device, "",
          "verbs: the device of the daemon that is started. Empty: the first with an active port.");
ABSL_FLAG(uint32_t, verbs_port, 0, "verbs: the client's port. 0: the device's first active one.");
ABSL_FLAG(int64_t, verbs_gid_index, -1,
          "verbs: entry of the GID table, for the client and for ib_read_bw. -1: they choose.");
ABSL_FLAG(absl::Duration, verbs_peer_timeout, absl::ZeroDuration(),
          "verbs: how long a read may go unacknowledged before the connection counts as lost. 0: "
          "the client's default.");
ABSL_FLAG(
    std::string, ucx_net_devices, "",
    "ucx: UCX_NET_DEVICES of the client, such as mlx5_0:1,eth0. Empty: as the environment says.");
ABSL_FLAG(std::string, daemon_ucx_net_devices, "",
          "ucx: UCX_NET_DEVICES of the daemon that is started; with --address, for the ceiling.");

namespace oasiskv::bench {
namespace {

const Identity kIdentity{"oasis-bench", "1", ""};

absl::StatusOr<std::string> WaitReady(ChildProcess& daemon, const std::string& ready,
                                      const std::string& log) {
  const MonotonicTime deadline = Clock::Real().Now() + std::chrono::seconds(120);
  while (Clock::Real().Now() < deadline) {
    std::ifstream file(ready);
    const auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
    if (json.is_object() && json.contains("control_address"))
      return json["control_address"].get<std::string>();
    if (!daemon.Running()) {
      std::ifstream lines(log);
      const std::string text((std::istreambuf_iterator<char>(lines)), {});
      return MakeError(ErrorCode::kInternal, absl::StrCat("oasiskvd did not start:\n", text));
    }
    std::this_thread::sleep_for(Millis(10));
  }
  return MakeError(ErrorCode::kDeadlineExceeded, "oasiskvd was not ready within 120 s");
}

}  // namespace

void FillEntry(uint64_t number, std::span<std::byte> entry) {
  for (size_t i = 0; i + 8 <= entry.size(); i += 8) {
    const uint64_t word = Word(number, i / 8);
    std::memcpy(entry.data() + i, &word, 8);
  }
}

bool EntryIsRight(uint64_t number, std::span<const std::byte> entry) {
  uint64_t difference = 0;
  for (size_t i = 0; i + 8 <= entry.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, entry.data() + i, 8);
    difference |= word ^ Word(number, i / 8);
  }
  return difference == 0;
}

absl::StatusOr<std::unique_ptr<TemporaryDirectory>> TemporaryDirectory::Create() {
  std::string pattern = (std::filesystem::temp_directory_path() / "oasis-bench-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) {
    return MakeError(ErrorCode::kInternal,
                     absl::StrCat("mkdtemp(", pattern, "): ", std::strerror(errno)));
  }
  return std::make_unique<TemporaryDirectory>(pattern);
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;  // nothing can be done about a directory that cannot be removed
  std::filesystem::remove_all(path_, ignored);
}

absl::StatusOr<TestbedOptions> TestbedOptions::FromFlags(uint64_t kv_bytes) {
  TestbedOptions options;
  options.address = absl::GetFlag(FLAGS_address);
  options.daemon = absl::GetFlag(FLAGS_daemon);
  if (options.daemon.empty()) {
    options.daemon = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "oasiskvd";
  }
  options.fabric = absl::GetFlag(FLAGS_fabric);
  if (options.fabric != "auto" && fabric::FindFabric(options.fabric) == nullptr) {
    return Refuse(absl::StrCat("--fabric=", options.fabric, " is not a fabric; there are auto, ",
                               fabric::FabricNames()));
  }
  options.verbs_device = absl::GetFlag(FLAGS_verbs_device);
  options.daemon_verbs_device = absl::GetFlag(FLAGS_daemon_verbs_device);
  options.verbs_port = absl::GetFlag(FLAGS_verbs_port);
  options.verbs_gid_index = absl::GetFlag(FLAGS_verbs_gid_index);
  options.verbs_peer_timeout = absl::ToChronoNanoseconds(absl::GetFlag(FLAGS_verbs_peer_timeout));
  options.ucx_net_devices = absl::GetFlag(FLAGS_ucx_net_devices);
  options.daemon_ucx_net_devices = absl::GetFlag(FLAGS_daemon_ucx_net_devices);
  // Entries, their summaries (two vectors for each 2 x block_tokens) and slab tails.
  const uint64_t need = kv_bytes * 5 / 4 + (uint64_t{128} << 20);
  options.pool_bytes = (need + (uint64_t{64} << 20) - 1) >> 26 << 26;
  return options;
}

absl::StatusOr<Testbed> Testbed::Create(const TestbedOptions& options) {
  Testbed bed;
  ClientOptions client;
  client.fabric = options.fabric;
  client.address = options.address;
  client.read_timeout = std::chrono::seconds(60);
  client.rpc_timeout = std::chrono::seconds(30);
  client.verbs_device = options.verbs_device;
  client.verbs_port = options.verbs_port;
  client.verbs_gid_index = options.verbs_gid_index;
  client.verbs_peer_timeout = options.verbs_peer_timeout;
  if (options.address.empty()) {
    OASISKV_ASSIGN_OR_RETURN(bed.directory_, TemporaryDirectory::Create());
    const std::string directory = bed.directory_->path();
    const std::string ready = directory + "/ready.json", log = directory + "/daemon.log";
    // Auto does not ask for a device that may not be there.
    const std::string served = options.fabric == "auto" ? "shm,ucx" : options.fabric;
    std::vector<std::string> environment;
    if (!options.daemon_ucx_net_devices.empty()) {
      environment.push_back("UCX_NET_DEVICES=" + options.daemon_ucx_net_devices);
    }
    OASISKV_ASSIGN_OR_RETURN(
        ChildProcess daemon,
        ChildProcess::Start(
            {options.daemon, "--fabrics=" + served,
             absl::StrCat("--verbs_device=", options.daemon_verbs_device),
             "--control_address=127.0.0.1:0", "--metrics_address=", "--ucx_address=127.0.0.1:0",
             absl::StrCat("--shm_socket=", directory, "/shm.sock"),
             absl::StrCat("--pool_bytes=", options.pool_bytes), "--drain_timeout=100ms",
             absl::StrCat("--clear_frames=", options.clear_frames),
             absl::StrCat("--ready_file=", ready)},
            environment, log));
    bed.daemon_.emplace(std::move(daemon));
    OASISKV_ASSIGN_OR_RETURN(client.address, WaitReady(*bed.daemon_, ready, log));
  }
  if (!options.ucx_net_devices.empty()) {
    ::setenv("UCX_NET_DEVICES", options.ucx_net_devices.c_str(), 1);
  }
  OASISKV_ASSIGN_OR_RETURN(bed.client_, Client::Connect(client));
  return bed;
}

absl::Status Testbed::PutSequence(const std::string& name, const Geometry& geometry,
                                  uint32_t blocks) {
  ProducerSpec spec;
  spec.name = name;
  spec.identity = kIdentity;
  spec.geometry = geometry;
  spec.blocks = blocks;
  OASISKV_ASSIGN_OR_RETURN(Producer producer, client_->Open(spec));
  // One block of one layer at a time: entries as they will lie in the frame, which a KvView can
  // describe.
  std::vector<std::byte> entries(geometry.layer_entries_bytes());
  const uint32_t entry_bytes = geometry.entry_bytes();
  for (uint32_t block = 0; block < blocks; ++block) {
    for (uint32_t layer = 0; layer < geometry.layers; ++layer) {
      for (uint32_t head = 0; head < geometry.kv_heads; ++head) {
        FillEntry(EntryNumber(geometry, block, layer, head),
                  std::span(entries).subspan(size_t{head} * entry_bytes, entry_bytes));
      }
      const KvView keys{entries.data(), geometry.key_bytes(), entry_bytes};
      const KvView values{entries.data() + geometry.half_entry_bytes(), geometry.key_bytes(),
                          entry_bytes};
      OASISKV_RETURN_IF_ERROR(producer.WriteTokens(LayerIndex(layer),
                                                   uint64_t{block} * geometry.block_tokens,
                                                   geometry.block_tokens, keys, values));
    }
  }
  SealSpec seal;
  seal.token_count = uint64_t{blocks} * geometry.block_tokens;
  return producer.Seal(seal);
}

absl::StatusOr<Reader> Testbed::Attach(const std::string& name, const Geometry& geometry) {
  ReaderSpec spec;
  spec.name = name;
  spec.identity = kIdentity;
  spec.geometry = geometry;
  return client_->Attach(spec);
}

absl::Status Testbed::Drop(const std::string& name) {
  return client_->ReleaseSequences({name}, kIdentity).status();
}

}  // namespace oasiskv::bench
