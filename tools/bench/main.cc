// oasis-bench: measures the data path, always beside the ceiling of the same machine, and compares
// the bytes.
//
//   oasis-bench fetch    random entries in batches: GB/s, latency, CPU, by fabric, entry size,
//   batch oasis-bench attach   latency of an attach by number of frames oasis-bench step     a
//   decode step on GPUs: oasis-step-bench beside this program
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/fabric/registry.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"
#include "tools/bench/operations.h"

ABSL_FLAG(std::string, address, "",
          "Control address of a running daemon. Empty: start one and end it.");
ABSL_FLAG(std::string, daemon, "", "The oasiskvd to start. Empty: the one beside this program.");
ABSL_FLAG(std::string, fabric, "auto", "auto, shm, ucx or verbs.");
ABSL_FLAG(std::string, verbs_device, "", "verbs: this side's device. Empty: the first active.");
ABSL_FLAG(std::string, daemon_verbs_device, "",
          "verbs: device of the daemon that is started. Empty: the first active.");
ABSL_FLAG(uint32_t, verbs_port, 0, "verbs: this side's port. 0: the device's first active one.");
ABSL_FLAG(int64_t, verbs_gid_index, -1,
          "verbs: entry of the GID table, for the client and for ib_read_bw. -1: chosen.");
ABSL_FLAG(absl::Duration, verbs_peer_timeout, absl::ZeroDuration(),
          "verbs: unacknowledged for so long, the connection is lost. 0: the client's default.");
ABSL_FLAG(
    std::string, ucx_net_devices, "",
    "ucx: UCX_NET_DEVICES of this side, such as mlx5_0:1,eth0. Empty: as the environment says.");
ABSL_FLAG(std::string, daemon_ucx_net_devices, "",
          "ucx: the same of the daemon that is started, or of --address, for the ceiling.");
ABSL_FLAG(std::vector<std::string>, entry_bytes, std::vector<std::string>({"8192", "65536"}),
          "fetch: sizes of an entry, bytes; multiples of 512.");
ABSL_FLAG(std::vector<std::string>, batch, std::vector<std::string>({"64"}),
          "fetch: entries of a batch.");
ABSL_FLAG(uint32_t, depth, 1, "fetch: batches in flight at a time.");
ABSL_FLAG(double, seconds, 2, "fetch: measured time of a point.");
ABSL_FLAG(int, rounds, 7, "fetch: rounds the time is cut into; figures are medians over them.");
ABSL_FLAG(uint64_t, span_bytes, uint64_t{512} << 20,
          "fetch: size of the KV that random entries are drawn from.");
ABSL_FLAG(uint64_t, seed, 1, "fetch: of the random entries.");
ABSL_FLAG(bool, verify, true, "fetch: compare every byte that the last batch of a cycle brought.");
ABSL_FLAG(bool, register_buffers, true,
          "fetch: register the buffers with the client, which spares a copy over verbs.");
ABSL_FLAG(bool, ceiling, true,
          "fetch: also measure the ceiling (memcpy for shm, ucx_perftest for ucx, ib_read_bw for "
          "verbs).");
ABSL_FLAG(std::vector<std::string>, frames, std::vector<std::string>({"64", "1024", "8192"}),
          "attach: frames of the sequence.");
ABSL_FLAG(uint32_t, attaches, 2000, "attach: how many are timed.");
ABSL_FLAG(bool, json, false, "Print one JSON object a line instead of a table.");

namespace oasiskv::bench {
namespace {

template <typename T>
absl::StatusOr<std::vector<T>> Numbers(const std::vector<std::string>& texts,
                                       absl::string_view flag) {
  std::vector<T> numbers;
  for (const std::string& text : texts) {
    T value = 0;
    if (!absl::SimpleAtoi(text, &value) || value == 0) {
      return MakeError(ErrorCode::kInvalidArgument,
                       absl::StrCat("--", flag, ": '", text, "' is no positive number"));
    }
    numbers.push_back(value);
  }
  return numbers;
}

absl::StatusOr<TestbedOptions> TestbedFromFlags() {
  TestbedOptions options;
  options.address = absl::GetFlag(FLAGS_address);
  options.daemon = absl::GetFlag(FLAGS_daemon);
  if (options.daemon.empty()) {
    options.daemon = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "oasiskvd";
  }
  options.fabric = absl::GetFlag(FLAGS_fabric);
  if (options.fabric != "auto" && fabric::FindFabric(options.fabric) == nullptr) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        absl::StrCat("--fabric=", options.fabric, ": there are auto, ", fabric::FabricNames()));
  }
  options.verbs_device = absl::GetFlag(FLAGS_verbs_device);
  options.daemon_verbs_device = absl::GetFlag(FLAGS_daemon_verbs_device);
  options.verbs_port = absl::GetFlag(FLAGS_verbs_port);
  options.verbs_gid_index = absl::GetFlag(FLAGS_verbs_gid_index);
  options.verbs_peer_timeout = absl::ToChronoNanoseconds(absl::GetFlag(FLAGS_verbs_peer_timeout));
  options.ucx_net_devices = absl::GetFlag(FLAGS_ucx_net_devices);
  options.daemon_ucx_net_devices = absl::GetFlag(FLAGS_daemon_ucx_net_devices);
  // Entries, their summaries (two vectors for each 2 x block_tokens) and slab tails.
  const uint64_t need = absl::GetFlag(FLAGS_span_bytes) * 5 / 4 + (uint64_t{128} << 20);
  options.pool_bytes = (need + (uint64_t{64} << 20) - 1) >> 26 << 26;
  return options;
}

absl::Status Run(const std::string& operation) {
  OASISKV_ASSIGN_OR_RETURN(TestbedOptions testbed, TestbedFromFlags());
  const Format format = absl::GetFlag(FLAGS_json) ? Format::kJson : Format::kTable;
  if (operation == "fetch") {
    FetchOptions o;
    o.testbed = testbed;
    OASISKV_ASSIGN_OR_RETURN(o.entry_bytes,
                             Numbers<uint64_t>(absl::GetFlag(FLAGS_entry_bytes), "entry_bytes"));
    OASISKV_ASSIGN_OR_RETURN(o.batches, Numbers<uint32_t>(absl::GetFlag(FLAGS_batch), "batch"));
    o.depth = absl::GetFlag(FLAGS_depth);
    o.seconds = absl::GetFlag(FLAGS_seconds);
    o.rounds = absl::GetFlag(FLAGS_rounds);
    o.span_bytes = absl::GetFlag(FLAGS_span_bytes);
    o.seed = absl::GetFlag(FLAGS_seed);
    o.verify = absl::GetFlag(FLAGS_verify) ? Verify::kOn : Verify::kOff;
    o.buffers = absl::GetFlag(FLAGS_register_buffers) ? Buffers::kRegistered : Buffers::kPlain;
    o.ceiling = absl::GetFlag(FLAGS_ceiling) ? MeasureCeiling::kOn : MeasureCeiling::kOff;
    o.format = format;
    if (o.depth == 0 || o.rounds < 1 || !(o.seconds > 0)) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "--depth, --rounds and --seconds must be above 0");
    }
    return RunFetch(o);
  }
  if (operation == "attach") {
    AttachOptions o;
    o.testbed = testbed;
    OASISKV_ASSIGN_OR_RETURN(o.frames, Numbers<uint32_t>(absl::GetFlag(FLAGS_frames), "frames"));
    o.attaches = absl::GetFlag(FLAGS_attaches);
    o.format = format;
    return RunAttach(o);
  }
  return MakeError(ErrorCode::kInvalidArgument,
                   absl::StrCat("unknown operation '", operation,
                                "'; there are: fetch, attach, step (--help tells more)"));
}

// A program of its own, because it needs CUDA and nothing of the data path. Does not return unless
// it cannot be started.
int StartStepBench(char** arguments) {
  const std::string program =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "oasis-step-bench";
  ::execv(program.c_str(), arguments);
  std::fprintf(stderr,
               "oasis-bench step: cannot start %s: %s; it is built where nvcc is found, see "
               "OASISKV_CUDA\n",
               program.c_str(), std::strerror(errno));
  return 1;
}

}  // namespace
}  // namespace oasiskv::bench

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "step") == 0) {
    return oasiskv::bench::StartStepBench(argv + 1);
  }
  absl::SetProgramUsageMessage(
      "oasis-bench OPERATION [flags]\n"
      "  fetch    random entries in batches: GB/s, latency and CPU beside the ceiling of the same "
      "run\n"
      "  attach   latency of an attach by number of frames\n"
      "  step     a decode step on GPUs (oasis-bench step --help)\n"
      "A wrong byte or any other failure ends it with status 1, a wrong call with 2.");
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  if (rest.size() != 2) {
    std::fprintf(stderr, "%s\n", std::string(absl::ProgramUsageMessage()).c_str());
    return 2;
  }
  oasiskv::SetLogLevel(oasiskv::LogLevel::kWarning);
  const absl::Status status = oasiskv::bench::Run(rest[1]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "oasis-bench %s: %s\n", rest[1], std::string(status.message()).c_str());
  return oasiskv::ErrorCodeOf(status) == oasiskv::ErrorCode::kInvalidArgument ? 2 : 1;
}
