#include "server/options/options.h"

#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <limits>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/byte_size.h"
#include "common/status_macros.h"
#include "common/version.h"
#include "oasiskv/error.h"
#include "server/core/limits.h"
#include "server/options/flag_parser.h"

using oasiskv::ByteSize;
using oasiskv::server::Options;  // whose defaults the flags have

ABSL_FLAG(
    std::string, control_address, Options().control_address.ToString(),
    "Address on which the gRPC services listen, host:port or [v6]:port. Port 0: any free port; the "
    "ready file has its number.");
ABSL_FLAG(std::string, metrics_address, Options().metrics_address->ToString(),
          "Address on which /metrics is served for Prometheus. Empty: /metrics is off.");
ABSL_FLAG(std::string, fabrics, absl::StrJoin(Options().fabrics, ","),
          "Fabrics to serve, separated by commas: shm (same host), ucx (network), verbs (RDMA).");
ABSL_FLAG(
    std::string, shm_socket, "",
    "Path of the Unix socket of the shm fabric. Empty: oasiskvd-<control port>.sock in the first "
    "of /run/oasiskv, $XDG_RUNTIME_DIR and /tmp that can be written to.");
ABSL_FLAG(
    std::string, shm_allowed_uids, "",
    "Numbers of the users that may use the shm fabric, separated by commas; root and the daemon's "
    "own user always may.");
ABSL_FLAG(int64_t, shm_allowed_gid, Options().fabric.shm.allowed_gid,
          "Number of a group whose members may use the shm fabric. -1: none.");
ABSL_FLAG(std::string, ucx_address, Options().fabric.ucx.address.ToString(),
          "Where the ucx fabric listens. Port 0: any free port; Describe tells which.");
ABSL_FLAG(std::string, verbs_device, "",
          "RDMA device of the verbs fabric. Empty: the first with an active port.");
ABSL_FLAG(
    uint32_t, verbs_port, Options().fabric.verbs.port.port,
    "Port of that device, from 1. 0: the first active port. Without --verbs_device, the first "
    "device that has this port is taken.");
ABSL_FLAG(int64_t, verbs_gid_index, Options().fabric.verbs.port.gid_index,
          "Entry of that port's GID table to use. -1: chosen automatically, RoCE v2 and routable "
          "addresses first.");
ABSL_FLAG(absl::Duration, fence_timeout, absl::FromChrono(Options().fence_timeout),
          "Time in which an RDMA writer whose grant was revoked must confirm that it has stopped "
          "writing. After it the daemon ends the writer's connection, so that the memory can be "
          "used again.");
ABSL_FLAG(ByteSize, pool_bytes, ByteSize{Options().core.pool_bytes},
          "Memory for frames, in bytes or with KiB, MiB, GiB or TiB. A multiple of --slab_bytes.");
ABSL_FLAG(
    ByteSize, arena_bytes, ByteSize{Options().core.arena_bytes},
    "Size of one mapping of the pool; must divide --pool_bytes. 0: one mapping for all of it.");
ABSL_FLAG(
    ByteSize, slab_bytes, ByteSize{Options().core.slab_bytes},
    "Memory that frames of one size take from the pool at a time. A multiple of the page size.");
ABSL_FLAG(
    std::string, huge_pages, "off",
    "off: use no huge pages. prefer: use them if enough are free, else warn. require: use them, "
    "and do not start without.");
ABSL_FLAG(int, numa_node, Options().core.numa_node,
          "NUMA node for the pool's memory. -1: the kernel chooses.");
ABSL_FLAG(int, touch_threads, Options().core.touch_threads,
          "Threads that touch the pool at start. 0: one per CPU.");
ABSL_FLAG(uint32_t, max_grants, Options().core.max_grants, "Most grants at one time.");
ABSL_FLAG(uint32_t, max_sequences, Options().core.max_sequences,
          "Most live sequences at one time.");
ABSL_FLAG(uint32_t, max_blocks_per_sequence, Options().core.max_blocks_per_sequence,
          "Most blocks of one sequence.");
ABSL_FLAG(ByteSize, max_blob_bytes, ByteSize{Options().core.max_blob_bytes},
          "Largest opaque blob that a seal may carry; at most 2MiB.");
ABSL_FLAG(ByteSize, max_blobs_bytes, ByteSize{Options().core.max_blobs_bytes},
          "Memory for the blobs, first top-K lists and checksums of all sequences together.");
ABSL_FLAG(uint32_t, max_attach_waiters, Options().max_attach_waiters,
          "Most Attach calls that wait for a seal at one time; more get CAPACITY.");
ABSL_FLAG(absl::Duration, default_lease, absl::FromChrono(Options().core.default_lease),
          "Lease of a grant when the client does not ask for a length.");
ABSL_FLAG(absl::Duration, max_lease, absl::FromChrono(Options().core.max_lease),
          "The longest lease that a client may ask for.");
ABSL_FLAG(
    absl::Duration, unattended_ttl, absl::FromChrono(Options().core.unattended_ttl),
    "A sealed sequence is released after it had no grant for this time, because its reader may "
    "have died before it attached. 0: never.");
ABSL_FLAG(
    std::string, clear_frames, "tenant",
    "tenant: memory is cleared before it passes to another tenant. always: before each use, so "
    "that "
    "a tenant cannot read what it wrote itself earlier. never: not at all; a client that seals a "
    "sequence without writing can then read what any tenant left in the memory.");
ABSL_FLAG(absl::Duration, drain_timeout, absl::FromChrono(Options().drain_timeout),
          "How long a stopping daemon waits until every sequence is released and every grant given "
          "back; until then decodes go on. A second signal ends it at once.");
ABSL_FLAG(
    uint32_t, lose_answers, Options().lose_answers,
    "For tests of clients: lose about this many percent of the answers of KvMemory, after the "
    "call has been carried out, as a broken network would.");
ABSL_FLAG(uint32_t, lose_answers_seed, Options().lose_answers_seed,
          "Which answers --lose_answers loses: the same seed and calls lose the same ones.");
ABSL_FLAG(std::string, log_level, "info", "debug, info, warning, error or off.");
ABSL_FLAG(
    std::string, ready_file, "",
    "File into which the daemon writes its addresses, as JSON, once it serves; removed when it "
    "ends.");
ABSL_FLAG(bool, print_options, false,
          "Prints every flag with its value, in the form of a flag file, and ends.");
ABSL_FLAG(bool, help, false, "Prints this help and ends.");
ABSL_FLAG(bool, version, false, "Prints the version and ends.");

namespace oasiskv::server {
namespace {

constexpr char kFolder[] = "server/options/";

absl::Status Bad(absl::string_view flag, absl::string_view value, absl::string_view why) {
  return MakeError(ErrorCode::kInvalidArgument, absl::StrCat("--", flag, "=", value, ": ", why));
}

absl::StatusOr<Address> ReadAddress(absl::string_view flag, const std::string& text,
                                    uint16_t default_port) {
  auto address = ParseAddress(text, default_port);
  if (!address.ok()) return Bad(flag, text, address.status().message());
  return address;
}

absl::StatusOr<Duration> ReadDuration(absl::string_view flag, absl::Duration value,
                                      absl::Duration least) {
  if (value < least || value > absl::Hours(24)) {
    return Bad(flag, absl::FormatDuration(value),
               absl::StrCat("must be ", absl::FormatDuration(least), " to 24h"));
  }
  return absl::ToChronoNanoseconds(value);
}

absl::Status ReadFabrics(const std::string& text, Options& options) {
  options.fabrics.clear();
  for (const absl::string_view name : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    if (fabric::FindFabric(name) == nullptr) {
      return Bad("fabrics", text,
                 absl::StrCat("'", name, "' is not a fabric; there are ", fabric::FabricNames()));
    }
    options.fabrics.emplace_back(name);
  }
  if (options.fabrics.empty()) {
    return Bad("fabrics", text, absl::StrCat("name at least one of ", fabric::FabricNames()));
  }
  return absl::OkStatus();
}

absl::Status ReadShm(fabric::ShmOptions& shm) {
  shm.socket_path = absl::GetFlag(FLAGS_shm_socket);
  if (shm.socket_path.size() >= sizeof(sockaddr_un::sun_path)) {
    return Bad("shm_socket", shm.socket_path,
               absl::StrCat("a Unix socket's path has at most ", sizeof(sockaddr_un::sun_path) - 1,
                            " bytes, this has ", shm.socket_path.size()));
  }
  const std::string uids = absl::GetFlag(FLAGS_shm_allowed_uids);
  for (const absl::string_view text : absl::StrSplit(uids, ',', absl::SkipWhitespace())) {
    uint32_t uid = 0;
    if (!absl::SimpleAtoi(text, &uid)) {
      return Bad("shm_allowed_uids", uids, absl::StrCat("'", text, "' is not a user number"));
    }
    shm.allowed_uids.push_back(uid);
  }
  shm.allowed_gid = absl::GetFlag(FLAGS_shm_allowed_gid);
  if (shm.allowed_gid < -1 || shm.allowed_gid > std::numeric_limits<uint32_t>::max()) {
    return Bad("shm_allowed_gid", absl::StrCat(shm.allowed_gid), "must be -1 or 0 to 4294967295");
  }
  return absl::OkStatus();
}

absl::Status ReadVerbs(fabric::VerbsPortOptions& verbs) {
  verbs.device = absl::GetFlag(FLAGS_verbs_device);
  verbs.port = absl::GetFlag(FLAGS_verbs_port);
  if (verbs.port > fabric::kMaxVerbsPort) {
    return Bad(
        "verbs_port", absl::StrCat(verbs.port),
        absl::StrCat("must be 1 to ", fabric::kMaxVerbsPort, ", or 0 for the first active port"));
  }
  verbs.gid_index = absl::GetFlag(FLAGS_verbs_gid_index);
  if (verbs.gid_index < -1 || verbs.gid_index > fabric::kMaxVerbsGidIndex) {
    return Bad(
        "verbs_gid_index", absl::StrCat(verbs.gid_index),
        absl::StrCat("must be 0 to ", fabric::kMaxVerbsGidIndex, ", or -1 for automatic choice"));
  }
  return absl::OkStatus();
}

absl::Status ReadPool(CoreOptions& core) {
  core.pool_bytes = absl::GetFlag(FLAGS_pool_bytes).bytes;
  core.arena_bytes = absl::GetFlag(FLAGS_arena_bytes).bytes;
  core.slab_bytes = absl::GetFlag(FLAGS_slab_bytes).bytes;
  const uint64_t page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  if (core.slab_bytes == 0 || core.slab_bytes % page != 0) {
    return Bad("slab_bytes", AbslUnparseFlag(ByteSize{core.slab_bytes}),
               absl::StrCat("must be a multiple of the page size, ", page, " bytes, and not 0"));
  }
  if (core.pool_bytes == 0 || core.pool_bytes % core.slab_bytes != 0) {
    return Bad("pool_bytes", AbslUnparseFlag(ByteSize{core.pool_bytes}),
               absl::StrCat("must be a multiple of --slab_bytes=",
                            AbslUnparseFlag(ByteSize{core.slab_bytes}), " and not 0"));
  }
  if (core.arena_bytes != 0 &&
      (core.arena_bytes % core.slab_bytes != 0 || core.pool_bytes % core.arena_bytes != 0)) {
    return Bad(
        "arena_bytes", AbslUnparseFlag(ByteSize{core.arena_bytes}),
        absl::StrCat(
            "must be a multiple of --slab_bytes=", AbslUnparseFlag(ByteSize{core.slab_bytes}),
            " that divides --pool_bytes=", AbslUnparseFlag(ByteSize{core.pool_bytes})));
  }
  const std::string clear = absl::GetFlag(FLAGS_clear_frames);
  if (clear == "tenant") {
    core.clear_frames = ClearFrames::kTenant;
  } else if (clear == "always") {
    core.clear_frames = ClearFrames::kAlways;
  } else if (clear == "never") {
    core.clear_frames = ClearFrames::kNever;
  } else {
    return Bad("clear_frames", clear, "must be tenant, always or never");
  }
  const std::string huge = absl::GetFlag(FLAGS_huge_pages);
  if (huge == "off") {
    core.huge_pages = HugePages::kOff;
  } else if (huge == "prefer") {
    core.huge_pages = HugePages::kPrefer;
  } else if (huge == "require") {
    core.huge_pages = HugePages::kRequire;
  } else {
    return Bad("huge_pages", huge, "must be off, prefer or require");
  }
  core.numa_node = absl::GetFlag(FLAGS_numa_node);
  if (core.numa_node < -1) {
    return Bad("numa_node", absl::StrCat(core.numa_node), "must be -1 or the number of a node");
  }
  core.touch_threads = absl::GetFlag(FLAGS_touch_threads);
  if (core.touch_threads < 0 || core.touch_threads > 1024) {
    return Bad("touch_threads", absl::StrCat(core.touch_threads), "must be 0 to 1024");
  }
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> ReadLimit(absl::string_view flag, uint32_t value, uint32_t most) {
  if (value == 0 || value > most) {
    return Bad(flag, absl::StrCat(value), absl::StrCat("must be 1 to ", most));
  }
  return value;
}

absl::Status ReadLimits(Options& options) {
  CoreOptions& core = options.core;
  OASISKV_ASSIGN_OR_RETURN(core.max_grants,
                           ReadLimit("max_grants", absl::GetFlag(FLAGS_max_grants), kMostGrants));
  OASISKV_ASSIGN_OR_RETURN(
      core.max_sequences,
      ReadLimit("max_sequences", absl::GetFlag(FLAGS_max_sequences), kMostSequences));
  OASISKV_ASSIGN_OR_RETURN(core.max_blocks_per_sequence,
                           ReadLimit("max_blocks_per_sequence",
                                     absl::GetFlag(FLAGS_max_blocks_per_sequence), kMostBlocks));
  options.lose_answers = absl::GetFlag(FLAGS_lose_answers);
  if (options.lose_answers > 100) {
    return Bad("lose_answers", absl::StrCat(options.lose_answers), "must be between 0 and 100");
  }
  options.lose_answers_seed = absl::GetFlag(FLAGS_lose_answers_seed);
  OASISKV_ASSIGN_OR_RETURN(
      options.max_attach_waiters,
      ReadLimit("max_attach_waiters", absl::GetFlag(FLAGS_max_attach_waiters), 1u << 20));
  core.max_blob_bytes = absl::GetFlag(FLAGS_max_blob_bytes).bytes;
  if (core.max_blob_bytes > kMostBlobBytes) {
    return Bad("max_blob_bytes", AbslUnparseFlag(ByteSize{core.max_blob_bytes}),
               "must be at most 2MiB: an attach answer must stay below gRPC's 4 MiB");
  }
  core.max_blobs_bytes = absl::GetFlag(FLAGS_max_blobs_bytes).bytes;
  OASISKV_ASSIGN_OR_RETURN(
      core.default_lease,
      ReadDuration("default_lease", absl::GetFlag(FLAGS_default_lease), absl::Milliseconds(100)));
  OASISKV_ASSIGN_OR_RETURN(core.max_lease, ReadDuration("max_lease", absl::GetFlag(FLAGS_max_lease),
                                                        absl::Milliseconds(100)));
  if (core.default_lease > core.max_lease) {
    return Bad("default_lease", absl::FormatDuration(absl::GetFlag(FLAGS_default_lease)),
               absl::StrCat("is longer than --max_lease=",
                            absl::FormatDuration(absl::GetFlag(FLAGS_max_lease))));
  }
  const absl::Duration unattended = absl::GetFlag(FLAGS_unattended_ttl);
  core.unattended_ttl = Duration(0);
  if (unattended != absl::ZeroDuration()) {
    const auto ttl = ReadDuration("unattended_ttl", unattended, absl::Milliseconds(100));
    if (!ttl.ok()) {
      return Bad("unattended_ttl", absl::FormatDuration(unattended),
                 "must be 0 (never) or 100ms to 24h");
    }
    core.unattended_ttl = *ttl;
  }
  OASISKV_ASSIGN_OR_RETURN(
      options.drain_timeout,
      ReadDuration("drain_timeout", absl::GetFlag(FLAGS_drain_timeout), absl::ZeroDuration()));
  return absl::OkStatus();
}

absl::StatusOr<LogLevel> ReadLogLevel(const std::string& text) {
  constexpr std::pair<absl::string_view, LogLevel> kLevels[] = {{"debug", LogLevel::kDebug},
                                                                {"info", LogLevel::kInfo},
                                                                {"warning", LogLevel::kWarning},
                                                                {"error", LogLevel::kError},
                                                                {"off", LogLevel::kOff}};
  for (const auto& [name, level] : kLevels) {
    if (text == name) return level;
  }
  return Bad("log_level", text, "must be debug, info, warning, error or off");
}

// Found here, and not only when the second listener is bound.
absl::Status CheckPortsDiffer(const Options& options) {
  std::vector<std::pair<std::string, Address>> all = {{"control_address", options.control_address}};
  if (options.metrics_address) all.emplace_back("metrics_address", *options.metrics_address);
  for (const std::string& name : options.fabrics) {
    const fabric::Fabric& entry = *fabric::FindFabric(name);
    if (entry.port != nullptr) {
      all.emplace_back(absl::StrCat(name, "_address"), entry.port(options.fabric));
    }
  }
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (all[i].second == all[j].second && all[i].second.port != 0) {
        return Bad(all[i].first, all[i].second.ToString(),
                   absl::StrCat("is the same as --", all[j].first));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Options> ReadOptions() {
  Options options;
  OASISKV_ASSIGN_OR_RETURN(
      options.control_address,
      ReadAddress("control_address", absl::GetFlag(FLAGS_control_address), 7400));
  const std::string metrics = absl::GetFlag(FLAGS_metrics_address);
  options.metrics_address.reset();
  if (!metrics.empty()) {
    OASISKV_ASSIGN_OR_RETURN(options.metrics_address,
                             ReadAddress("metrics_address", metrics, 7401));
  }
  OASISKV_RETURN_IF_ERROR(ReadFabrics(absl::GetFlag(FLAGS_fabrics), options));
  OASISKV_RETURN_IF_ERROR(ReadShm(options.fabric.shm));
  OASISKV_ASSIGN_OR_RETURN(options.fabric.ucx.address,
                           ReadAddress("ucx_address", absl::GetFlag(FLAGS_ucx_address), 7402));
  OASISKV_RETURN_IF_ERROR(ReadVerbs(options.fabric.verbs.port));
  OASISKV_ASSIGN_OR_RETURN(
      options.fence_timeout,
      ReadDuration("fence_timeout", absl::GetFlag(FLAGS_fence_timeout), absl::Milliseconds(100)));
  OASISKV_RETURN_IF_ERROR(ReadPool(options.core));
  OASISKV_RETURN_IF_ERROR(ReadLimits(options));
  OASISKV_ASSIGN_OR_RETURN(options.log_level, ReadLogLevel(absl::GetFlag(FLAGS_log_level)));
  options.ready_file = absl::GetFlag(FLAGS_ready_file);
  OASISKV_RETURN_IF_ERROR(CheckPortsDiffer(options));
  return options;
}

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& args) {
  ResetFlags(kFolder);
  OASISKV_RETURN_IF_ERROR(ParseFlags(args));
  CommandLine out;
  if (absl::GetFlag(FLAGS_help)) {
    out.action = Action::kPrintHelp;
    out.text = absl::StrCat(
        "oasiskvd keeps the KV of LLM requests in memory, for readers on this host and "
        "others.\n\nUsage: oasiskvd [FLAGS]\n\n",
        FlagHelp(kFolder));
    return out;
  }
  if (absl::GetFlag(FLAGS_version)) {
    out.action = Action::kPrintVersion;
    out.text = absl::StrCat("oasiskvd ", Version(), "\n");
    return out;
  }
  OASISKV_ASSIGN_OR_RETURN(out.options, ReadOptions());
  if (absl::GetFlag(FLAGS_print_options)) {
    out.action = Action::kPrintOptions;
    absl::SetFlag(&FLAGS_print_options, false);  // a daemon with the printed file must serve
    out.text = CurrentFlags(kFolder);
  }
  return out;
}

}  // namespace oasiskv::server
