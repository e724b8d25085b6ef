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

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

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
