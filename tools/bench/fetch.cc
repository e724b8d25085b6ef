// fetch: random entries of a sequence much larger than the caches, in batches, against the ceiling
// of the same run.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/mapped_memory.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"
#include "tools/bench/ceiling.h"
#include "tools/bench/operation.h"
#include "tools/bench/operations.h"
#include "tools/bench/report.h"
#include "tools/bench/testbed.h"

ABSL_FLAG(std::vector<std::string>, entry_bytes, std::vector<std::string>({"8192", "65536"}),
          "Sizes of an entry in bytes; multiples of 512.");
ABSL_FLAG(std::vector<std::string>, batch, std::vector<std::string>({"64"}), "Entries of a batch.");
ABSL_FLAG(uint32_t, depth, 1, "Batches in flight at a time.");
ABSL_FLAG(double, seconds, 2, "Measured time of a point, seconds.");
ABSL_FLAG(int, rounds, 7, "Rounds that the time is cut into; figures are medians over them.");
ABSL_FLAG(uint64_t, span_bytes, uint64_t{512} << 20,
          "Size of the KV that random entries are drawn from.");
ABSL_FLAG(uint64_t, seed, 1, "Of the random entries.");
ABSL_FLAG(bool, verify, true, "Compare every byte that the last batch of a cycle brought.");
ABSL_FLAG(bool, register_buffers, true,
          "Register the buffers with the client, which spares a copy over verbs.");
ABSL_FLAG(bool, ceiling, true,
          "Also measure the ceiling (memcpy for shm, ucx_perftest for ucx, ib_read_bw for "
          "verbs).");

namespace oasiskv::bench {
namespace {

using SteadyClock = std::chrono::steady_clock;

struct FetchOptions {
  static absl::StatusOr<FetchOptions> FromFlags();

  TestbedOptions testbed;
  std::vector<uint64_t> entry_bytes;
  std::vector<uint32_t> batches;  // entries of each
  uint32_t depth = 0;             // batches in flight
  double seconds = 0;             // timed, per point
  int rounds = 0;                 // that the time is cut into
  uint64_t span_bytes = 0;        // of KV that random entries are drawn from
  uint64_t seed = 0;
  bool verify = true, register_buffers = true, ceiling = true;
};

absl::StatusOr<FetchOptions> FetchOptions::FromFlags() {
  FetchOptions o;
  o.span_bytes = absl::GetFlag(FLAGS_span_bytes);
  OASISKV_ASSIGN_OR_RETURN(o.testbed, TestbedOptions::FromFlags(o.span_bytes));
  OASISKV_ASSIGN_OR_RETURN(o.entry_bytes,
                           Numbers<uint64_t>(absl::GetFlag(FLAGS_entry_bytes), "entry_bytes"));
  OASISKV_ASSIGN_OR_RETURN(o.batches, Numbers<uint32_t>(absl::GetFlag(FLAGS_batch), "batch"));
  o.depth = absl::GetFlag(FLAGS_depth);
  o.seconds = absl::GetFlag(FLAGS_seconds);
  o.rounds = absl::GetFlag(FLAGS_rounds);
  o.seed = absl::GetFlag(FLAGS_seed);
  o.verify = absl::GetFlag(FLAGS_verify);
  o.register_buffers = absl::GetFlag(FLAGS_register_buffers);
  o.ceiling = absl::GetFlag(FLAGS_ceiling);
  if (o.depth == 0 || o.rounds < 1 || !(o.seconds > 0)) {
    return Refuse("--depth, --rounds and --seconds must be above 0");
  }
  return o;
}

// Entries of `entry_bytes`: 8 heads x 8 layers in a frame, and as many tokens in a block as the size takes.
absl::StatusOr<Geometry> GeometryFor(uint64_t entry_bytes) {
  Geometry g;
  g.layers = 8;
  g.kv_heads = 8;
  g.total_kv_heads = 8;
  g.head_dim = 128;
  g.element_type = ElementType::kBFloat16;
  const uint64_t token_bytes = 2 * uint64_t{g.key_bytes()};
  if (entry_bytes == 0 || entry_bytes % token_bytes != 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrFormat("--entry_bytes=%d: entries are whole tokens of %d bytes",
                                     entry_bytes, token_bytes));
  }
  g.block_tokens = static_cast<uint32_t>(entry_bytes / token_bytes);
  OASISKV_RETURN_IF_ERROR(Annotate(g.Validate(), absl::StrCat("--entry_bytes=", entry_bytes)));
  return g;
}

// A cycle starts every batch this many times, each time with other entries, so that caches help no
// more than in use: at least eight times, and until kCycleBytes were moved, since nothing is in
// flight for a moment at its end, which never happens to the ceiling's endless stream of reads.
constexpr uint64_t kLeastStarts = 8, kMostStarts = 64;
constexpr uint64_t kCycleBytes = uint64_t{32} << 20;

VerbsPorts VerbsPortsOf(const TestbedOptions& testbed) {
  return {testbed.verbs_device, testbed.daemon_verbs_device, testbed.verbs_port,
          testbed.verbs_gid_index};
}

// What one batch in flight occupies.
struct Slot {
  std::vector<std::byte> buffer;
  RegisteredBuffer registration;
  std::vector<std::vector<EntryRead>> reads;  // a list for each start of a cycle
  std::unique_ptr<PendingFetch> fetch;
  SteadyClock::time_point started;
};

// Thread contract: used by one thread.
//
// One point: `depth` batches of `batch` random entries in flight at any time.
class FetchPoint {
 public:
  FetchPoint(Testbed& bed, Reader& reader, uint32_t blocks, uint32_t batch,
             const FetchOptions& options)
      : bed_(bed),
        reader_(reader),
        geometry_(reader.geometry()),
        blocks_(blocks),
        options_(options),
        random_(options.seed) {
    const uint64_t at_once = uint64_t{batch} * options.depth * geometry_.entry_bytes();
    starts_ = std::clamp(kCycleBytes / at_once, kLeastStarts, kMostStarts);
    slots_.resize(options.depth);
    for (Slot& slot : slots_) {
      slot.buffer.resize(size_t{batch} * geometry_.entry_bytes());
      slot.reads.resize(starts_);
      for (auto& reads : slot.reads) {
        reads.resize(batch);
        for (uint32_t i = 0; i < batch; ++i) {
          reads[i].into = slot.buffer.data() + size_t{i} * geometry_.entry_bytes();
        }
      }
    }
  }

  absl::Status Run(FetchRow& row) {
    for (Slot& slot : slots_) {
      if (!options_.register_buffers) break;
      OASISKV_ASSIGN_OR_RETURN(slot.registration, reader_.RegisterBuffer(slot.buffer));
    }
    OASISKV_RETURN_IF_ERROR(Round(options_.seconds / options_.rounds, nullptr));  // warms up
    micros_.clear();
    const ClientStats before = bed_.client().Stats();
    const bool memcpy_ceiling = options_.ceiling && row.fabric == "shm";
    if (memcpy_ceiling) OASISKV_RETURN_IF_ERROR(PrepareMemcpy());
    VerbsCeiling verbs_ceiling(VerbsPortsOf(options_.testbed), geometry_.entry_bytes(),
                               row.batch * row.depth);
    bool with_verbs = options_.ceiling && row.fabric == "verbs";
    if (with_verbs) {  // a short run, by which the others are made long enough
      const absl::Status probe = verbs_ceiling.Round(0).status();
      with_verbs = ErrorCodeOf(probe) != ErrorCode::kNotFound;
      if (with_verbs) OASISKV_RETURN_IF_ERROR(probe);
    }
    std::vector<double> rates, ceilings;
    double client_cpu = 0, server_cpu = 0;
    for (int i = 0; i < options_.rounds; ++i) {
      // The ceiling's rounds stand between the fetch's, so that both see the same machine.
      if (memcpy_ceiling) ceilings.push_back(MemcpyRound());
      if (with_verbs) {
        OASISKV_ASSIGN_OR_RETURN(const double gbps,
                                 verbs_ceiling.Round(options_.seconds / options_.rounds));
        ceilings.push_back(gbps);
      }
      const double server_before = CpuSeconds(bed_.daemon_pid());
      RoundResult result;
      OASISKV_RETURN_IF_ERROR(Round(options_.seconds / options_.rounds, &result));
      rates.push_back(static_cast<double>(result.bytes) / result.busy_seconds / 1e9);
      client_cpu += result.cpu_seconds;
      if (bed_.daemon_pid() != 0) server_cpu += CpuSeconds(bed_.daemon_pid()) - server_before;
      row.entries += result.bytes / geometry_.entry_bytes();
    }
    const ClientStats after = bed_.client().Stats();
    const double entries = static_cast<double>(row.entries);
    const double gib = entries * geometry_.entry_bytes() / (uint64_t{1} << 30);
    row.bytes_verified = verified_;
    row.gbps = SpreadOf(rates);
    if (memcpy_ceiling) {
      row.ceiling = SpreadOf(ceilings);
      row.ceiling_name = "memcpy of the same scattered pieces of a memfd";
    }
    if (with_verbs) row.ceiling = SpreadOf(ceilings);
    if (row.fabric == "verbs") {
      row.ceiling_name =
          with_verbs ? verbs_ceiling.command()
                     : "not measured (ib_read_bw is not installed; Debian has it in perftest)";
    }
    row.p50_us = Quantile(micros_, 0.5);
    row.p99_us = Quantile(micros_, 0.99);
    row.p999_us = Quantile(micros_, 0.999);
    const auto mean_us = [&](uint64_t ClientStats::*sum) {
      return static_cast<double>(after.*sum - before.*sum) * 1e-3 /
             static_cast<double>(after.timed_reads - before.timed_reads);
    };
    row.prepare_us = mean_us(&ClientStats::prepare_ns);
    row.post_us = mean_us(&ClientStats::post_ns);
    row.wire_us = mean_us(&ClientStats::wire_ns);
    row.cpu_client_s_per_gib = client_cpu / gib;
    if (bed_.daemon_pid() != 0) row.cpu_server_s_per_gib = server_cpu / gib;
    const uint64_t direct = after.bytes_direct - before.bytes_direct;
    const uint64_t moved = direct + after.bytes_bounced - before.bytes_bounced;
    if (moved > 0) row.direct_share = static_cast<double>(direct) / static_cast<double>(moved);
    row.request_bytes_per_entry =
        static_cast<double>(after.request_bytes - before.request_bytes) / entries;
    row.requests_per_entry = static_cast<double>(after.requests - before.requests) /
                             static_cast<double>(after.pieces - before.pieces);
    return absl::OkStatus();
  }

 private:
  struct RoundResult {
    uint64_t bytes = 0;
    // Both without choosing entries and comparing bytes.
    double busy_seconds = 0, cpu_seconds = 0;
  };

  void Choose(Slot& slot) {
    std::uniform_int_distribution<uint32_t> block(0, blocks_ - 1), layer(0, geometry_.layers - 1),
        head(0, geometry_.kv_heads - 1);
    for (auto& reads : slot.reads) {
      for (EntryRead& read : reads) {
        read.block = BlockIndex(block(random_));
        read.layer = LayerIndex(layer(random_));
        read.head = HeadIndex(head(random_));
      }
    }
  }

  absl::Status Compare(const Slot& slot) {
    const uint32_t bytes = geometry_.entry_bytes();
    for (const EntryRead& read : slot.reads.back()) {
      const uint64_t number = Testbed::EntryNumber(geometry_, read.block.value(),
                                                   read.layer.value(), read.head.value());
      if (!EntryIsRight(number, {read.into, bytes})) {
        return MakeError(
            ErrorCode::kChecksumMismatch,
            absl::StrFormat("block %d, layer %d, head %d came with wrong bytes", read.block.value(),
                            read.layer.value(), read.head.value()));
      }
    }
    verified_ += uint64_t{bytes} * slot.reads.back().size();
    return absl::OkStatus();
  }

  // Cycles of: choose entries for `starts_` starts of every batch (not timed); start all batches
  // and, as each ends, start it again (timed); compare what the last ones brought (not timed). So
  // the clock runs only while batches are in flight.
  absl::Status Round(double seconds, RoundResult* result) {
    RoundResult sum;
    while (sum.busy_seconds < seconds) {
      for (Slot& slot : slots_) {
        Choose(slot);
        if (options_.verify) std::memset(slot.buffer.data(), 0xEE, slot.buffer.size());
      }
      const double cpu = CpuSeconds(0);
      const auto start = SteadyClock::now();
      for (Slot& slot : slots_) Start(slot, 0);
      for (size_t i = 0; i < starts_; ++i) {
        for (Slot& slot : slots_) {
          OASISKV_RETURN_IF_ERROR(Finish(slot));
          sum.bytes += slot.buffer.size();
          if (i + 1 < starts_) Start(slot, i + 1);
        }
      }
      sum.busy_seconds += Seconds(SteadyClock::now() - start);
      sum.cpu_seconds += CpuSeconds(0) - cpu;
      if (options_.verify) {
        for (const Slot& slot : slots_) OASISKV_RETURN_IF_ERROR(Compare(slot));
      }
    }
    if (result != nullptr) *result = sum;
    return absl::OkStatus();
  }

  void Start(Slot& slot, size_t start) {
    slot.started = SteadyClock::now();
    slot.fetch = reader_.FetchEntries(slot.reads[start], reader_.DefaultDeadline());
  }

  absl::Status Finish(Slot& slot) {
    OASISKV_RETURN_IF_ERROR(slot.fetch->Wait());
    micros_.push_back(Seconds(SteadyClock::now() - slot.started) * 1e6);
    slot.fetch.reset();
    return absl::OkStatus();
  }

  // Memory of this process's own, as large as the sequence and of the same kind (a memfd with
  // normal pages), which the ceiling reads from: with other pages it would measure the TLB.
  absl::Status PrepareMemcpy() {
    const uint64_t bytes =
        uint64_t{blocks_} * geometry_.layers * geometry_.kv_heads * geometry_.entry_bytes();
    OASISKV_ASSIGN_OR_RETURN(UniqueFd fd, CreateMemfd("oasis-bench", bytes, PageKind::kNormal));
    OASISKV_ASSIGN_OR_RETURN(copy_, Mapping::Map(fd.get(), bytes, Protection::kReadWrite));
    for (uint64_t i = 0; i < bytes; i += 4096) copy_.data()[i] = std::byte{1};
    return absl::OkStatus();
  }

  double MemcpyRound() {
    std::vector<std::vector<CopyPiece>> lists(starts_);
    double seconds = 0;
    uint64_t bytes = 0;
    while (seconds < options_.seconds / options_.rounds) {
      for (Slot& slot : slots_) {
        Choose(slot);
        for (size_t i = 0; i < starts_; ++i) {
          lists[i].clear();
          for (const EntryRead& read : slot.reads[i]) {
            const uint64_t number = Testbed::EntryNumber(geometry_, read.block.value(),
                                                         read.layer.value(), read.head.value());
            lists[i].push_back({copy_.data() + number * geometry_.entry_bytes(), read.into});
          }
        }
        for (const auto& pieces : lists) {
          seconds += TimeMemcpy(pieces, geometry_.entry_bytes());
          bytes += slot.buffer.size();
        }
      }
    }
    return static_cast<double>(bytes) / seconds / 1e9;
  }

  Testbed& bed_;
  Reader& reader_;
  const Geometry geometry_;
  const uint32_t blocks_;
  const FetchOptions& options_;
  std::mt19937_64 random_;
  size_t starts_ = 0;
  std::vector<Slot> slots_;
  Mapping copy_;
  std::vector<double> micros_;
  uint64_t verified_ = 0;
};

UcxRoute RouteOf(const Testbed& bed, const TestbedOptions& testbed) {
  UcxRoute route = UcxRouteOf(bed.client().Describe());
  if (route.rdma()) {
    route.client_devices = testbed.ucx_net_devices;
    route.daemon_devices = testbed.daemon_ucx_net_devices;
  }
  return route;
}

absl::Status MeasureUcxCeilings(const UcxRoute& route, const FetchOptions& options,
                                uint32_t outstanding, FetchRow& row) {
  const uint64_t bytes = row.entry_bytes;
  // RDMA devices may be emulated, where one second is too short a time.
  const double seconds = route.rdma() ? options.seconds : 1.0;
  absl::StatusOr<UcxCeiling> get = MeasureUcx(route, "ucp_get", bytes, outstanding, seconds);
  if (ErrorCodeOf(get.status()) == ErrorCode::kNotFound) {
    row.ceiling_name = "not measured (ucx_perftest is not installed; Debian has it in ucx-utils)";
    return absl::OkStatus();
  }
  OASISKV_RETURN_IF_ERROR(get.status());
  row.ceiling = {get->gbps, 0};
  row.ceiling_name = get->command;
  OASISKV_ASSIGN_OR_RETURN(UcxCeiling am, MeasureUcx(route, "ucp_am_bw", bytes, outstanding, 1.0));
  row.am_ceiling = am.gbps;
  return absl::OkStatus();
}

}  // namespace

absl::Status RunFetch() {
  OASISKV_ASSIGN_OR_RETURN(const FetchOptions options, FetchOptions::FromFlags());
  const Format format = FormatFromFlag();
  OASISKV_ASSIGN_OR_RETURN(Testbed bed, Testbed::Create(options.testbed));
  std::vector<FetchRow> rows;
  for (uint64_t entry_bytes : options.entry_bytes) {
    OASISKV_ASSIGN_OR_RETURN(const Geometry geometry, GeometryFor(entry_bytes));
    const uint64_t per_block = uint64_t{geometry.layers} * geometry.kv_heads * entry_bytes;
    const auto blocks =
        static_cast<uint32_t>(std::max<uint64_t>(1, options.span_bytes / per_block));
    const std::string name = absl::StrCat("fetch-", entry_bytes);
    OASISKV_RETURN_IF_ERROR(bed.PutSequence(name, geometry, blocks));
    OASISKV_ASSIGN_OR_RETURN(Reader reader, bed.Attach(name, geometry));
    for (uint32_t batch : options.batches) {
      FetchRow row;
      row.fabric = bed.fabric();
      row.entry_bytes = entry_bytes;
      row.batch = batch;
      row.depth = options.depth;
      FetchPoint point(bed, reader, blocks, batch, options);
      OASISKV_RETURN_IF_ERROR(point.Run(row));
      if (options.ceiling && row.fabric == "ucx") {
        OASISKV_RETURN_IF_ERROR(
            MeasureUcxCeilings(RouteOf(bed, options.testbed), options, batch * options.depth, row));
      }
      rows.push_back(row);
      if (format == Format::kJson) {
        Print(rows, format);
        rows.clear();
      }
    }
    OASISKV_RETURN_IF_ERROR(reader.Release());
    OASISKV_RETURN_IF_ERROR(bed.Drop(name));
  }
  if (!rows.empty()) Print(rows, format);
  return absl::OkStatus();
}

}  // namespace oasiskv::bench
