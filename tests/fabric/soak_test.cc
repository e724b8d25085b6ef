// Clients that read and write, while the daemon and the clients are killed and stopped and grants
// are revoked: no wrong byte, no call that outlives its deadline, nothing left at the end.
//
//   soak_test [--fabric=verbs|ucx|shm] [--seconds=N] [--seed=N]
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/fabric/verbs/verbs.h"
#include "common/mapped_memory.h"
#include "tests/fabric/soak_process.h"
#include "tests/fabric/soak_tally.h"
#include "tests/fabric/soak_worker.h"
#include "tests/integration/control_stubs.h"
#include "tests/integration/eventually.h"
#include "tests/integration/http_get.h"
#include "tests/integration/mini_cluster.h"
#include "tests/support/self_process.h"

ABSL_FLAG(std::string, fabric, "verbs", "verbs, ucx or shm.");
ABSL_FLAG(int, seconds, 20,
          "How long it goes on; each thing that can happen happens once in about 25 s.");
ABSL_FLAG(uint32_t, seed, 1, "Of the order of events and of what clients do.");

namespace oasiskv::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kReaders = 3, kWriters = 2;
constexpr seconds kPatience{60};
// After the last client ended.
constexpr seconds kRdmaPatience{30};

enum class Event {
  kKillDaemon,
  kStopDaemonBriefly,
  kStopDaemonLong,  // longer than every deadline and lease
  kKillReader,
  kKillWriter,
  kStopReader,  // longer than its leases, with reads on the wire
  kStopWriter,  // longer than its leases and the daemon's fence timeout
  kEvict,
  kCount,
};
constexpr const char* kNames[] = {"daemon killed",  "daemon stopped briefly", "daemon stopped long",
                                  "reader killed",  "writer killed",          "reader stopped",
                                  "writer stopped", "sequence evicted"};
static_assert(std::size(kNames) == static_cast<size_t>(Event::kCount));

class Soak : public ::testing::Test {
 protected:
  void SetUp() override {
    fabric_ = absl::GetFlag(FLAGS_fabric);
    random_.seed(absl::GetFlag(FLAGS_seed));
    if (fabric_ == "verbs" && !(fabric::CheckVerbsPort({.device = "rxe0"}).ok() &&
                                fabric::CheckVerbsPort({.device = "rxe1"}).ok())) {
      GTEST_SKIP() << "needs the soft-RoCE devices rxe0 and rxe1; run the test through "
                      "tests/fabric/in-rdma-guest";
    }
    auto fd = CreateMemfd("tally", sizeof(Tally), PageKind::kNormal);
    ASSERT_TRUE(fd.ok()) << fd.status();
    tally_fd_ = UniqueFd(::dup(fd->get()));  // which the clients inherit
    auto mapping = Mapping::Map(tally_fd_.get(), sizeof(Tally), Protection::kReadWrite);
    ASSERT_TRUE(mapping.ok()) << mapping.status();
    mapping_ = *std::move(mapping);

    MiniClusterOptions options;
    options.flags = {"--fabrics=" + fabric_, "--pool_bytes=12MiB", "--slab_bytes=1MiB",
                     "--fence_timeout=1s",   "--log_level=error",  "--metrics_address=127.0.0.1:0"};
    if (fabric_ == "verbs") options.flags.push_back("--verbs_device=rxe1");
    // UCX leaves RDMA devices alone: whatever is left on them is of verbs.
    ::setenv("UCX_TLS", "tcp", 1);
    auto cluster = MiniCluster::Start(options);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    stubs_ = std::make_unique<ControlStubs>(daemon().addresses().control_address);
    rdma_before_ = RdmaResources();
    for (int i = 0; i < kReaders + kWriters; ++i) workers_.push_back(Spawn(i));
  }

  TestDaemon& daemon() { return cluster_->daemon(); }
  Tally& tally() { return *reinterpret_cast<Tally*>(mapping_.data()); }
  int Below(int limit) { return static_cast<int>(random_() % static_cast<uint32_t>(limit)); }
  static bool Writes(int position) { return position >= kReaders; }

  void Restart() {
    const absl::Status restarted = daemon().Restart();
    ASSERT_TRUE(restarted.ok()) << restarted;
  }

  std::unique_ptr<SelfProcess> Spawn(int position) {
    SoakWorkerOptions options;
    options.writer = Writes(position);
    options.address = daemon().addresses().control_address;
    options.fabric = fabric_;
    options.number = spawned_++ % 128;
    options.position = static_cast<uint32_t>(position);
    options.tally_fd = tally_fd_.get();
    return std::make_unique<SelfProcess>(options.ToArguments());
  }

  // Goes on for `time`, and looks meanwhile that all live and nothing hangs.
  void Watch(Duration time) {
    const MonotonicTime end = Clock::Real().Now() + time;
    do {
      const int64_t now = Clock::Real().Now().time_since_epoch().count();
      for (Tally::Call& call : tally().calls) {
        const int64_t end_by = call.end_by_ns;
        if (end_by == 0 || now < end_by + std::chrono::nanoseconds(kSlack).count()) continue;
        FAIL() << call.what.data() << " hangs: its deadline passed " << (now - end_by) / 1'000'000
               << " ms ago; where the process waits:\n"
               << WhereThreadsWait(call.process);
      }
      ASSERT_EQ(tally().faults, 0u) << tally().first_fault.data();
      ASSERT_TRUE(daemon().running()) << "the daemon ended by itself";
      for (const auto& worker : workers_) {
        ASSERT_TRUE(worker->running()) << "a client ended by itself with " << worker->exit_code();
      }
      std::this_thread::sleep_for(milliseconds(20));
    } while (Clock::Real().Now() < end);
  }

  void Kill(int position) {
    workers_[position]->Kill();
    for (uint32_t i = 0; i < kSoakThreads; ++i) {
      tally().calls[position * kSoakThreads + i].end_by_ns = 0;  // ended with its process
    }
    workers_[position] = Spawn(position);
  }

  void StopDaemon(Duration time) {
    ASSERT_TRUE(daemon().Pause().ok());
    Watch(time);
    ASSERT_TRUE(daemon().Resume().ok());
  }

  void StopWorker(int position, Duration time) {
    const MonotonicTime start = Clock::Real().Now();
    ASSERT_TRUE(workers_[position]->Signal(SIGSTOP));
    Watch(time);
    tally().stopped_ns[position] += (Clock::Real().Now() - start).count();
    ASSERT_TRUE(workers_[position]->Signal(SIGCONT));
  }

  void Evict() {
    v1::ListSequencesResponse list;
    if (!ControlStubs::Call(*stubs_->admin, &v1::Admin::Stub::ListSequences,
                            v1::ListSequencesRequest(), &list)
             .ok() ||
        list.sequences_size() == 0) {
      return;
    }
    EvictOne(list.sequences(Below(list.sequences_size())));
  }
  void EvictOne(const v1::SequenceInfo& sequence) {
    v1::EvictRequest request;
    request.set_name(sequence.name());
    *request.mutable_identity() = sequence.identity();
    v1::EvictResponse response;
    ControlStubs::Call(*stubs_->admin, &v1::Admin::Stub::Evict, request, &response);
    revoked_ += response.grants_revoked();
  }

  void Happen(Event event) {
    ++happened_[static_cast<int>(event)];
    switch (event) {
      case Event::kKillDaemon: {
        ASSERT_TRUE(daemon().running());
        return Restart();
      }
      case Event::kStopDaemonBriefly:
        return StopDaemon(milliseconds(200 + Below(800)));
      case Event::kStopDaemonLong:
        return StopDaemon(milliseconds(3000 + Below(1000)));
      case Event::kKillReader:
        return Kill(Below(kReaders));
      case Event::kKillWriter:
        return Kill(kReaders + Below(kWriters));
      case Event::kStopReader:
        return StopWorker(Below(kReaders), milliseconds(2500));
      case Event::kStopWriter:
        return StopWorker(kReaders + Below(kWriters), milliseconds(3500));
      case Event::kEvict:
        return Evict();
      case Event::kCount:
        break;
    }
  }

  // Some of what can happen, in random order: everything once, evictions often.
  std::vector<Event> Deck() {
    std::vector<Event> deck;
    deck.reserve(static_cast<size_t>(Event::kCount) + 6);
    for (int i = 0; i < static_cast<int>(Event::kCount); ++i) deck.push_back(static_cast<Event>(i));
    for (int i = 0; i < 6; ++i) deck.push_back(Event::kEvict);
    std::shuffle(deck.begin(), deck.end(), random_);
    return deck;
  }

  void EndWorkers() {
    for (const auto& worker : workers_) worker->CloseInput();
    for (const auto& worker : workers_) {
      ASSERT_TRUE(Eventually([&] { return !worker->running(); }, kPatience))
          << "a client does not end; where it waits:\n"
          << WhereThreadsWait(worker->pid());
      EXPECT_EQ(worker->exit_code(), 0);
    }
  }

  void ExpectNothingIsLeft() {
    v1::ListSequencesResponse list;
    const auto listed = [&] {  // not at once, when the daemon was killed just before
      return ControlStubs::Call(*stubs_->admin, &v1::Admin::Stub::ListSequences,
                                v1::ListSequencesRequest(), &list)
          .ok();
    };
    ASSERT_TRUE(Eventually(listed, kPatience));
    for (const v1::SequenceInfo& sequence : list.sequences()) EvictOne(sequence);
    const auto empty = [&] {
      const v1::GetCapacityResponse now = stubs_->Capacity();
      return now.pool_bytes() != 0 && now.used_bytes() == 0 && now.quarantined_bytes() == 0 &&
             now.grants_reader() == 0 && now.grants_writer() == 0;
    };
    EXPECT_TRUE(Eventually(empty, kPatience)) << stubs_->Capacity().ShortDebugString();
    const std::string series = absl::StrCat("oasiskv_fabric_connections{fabric=\"", fabric_, "\"}");
    double connections = -1;
    EXPECT_TRUE(Eventually(
        [&] {
          const auto text = HttpGet(daemon().addresses().metrics_address, "/metrics");
          if (!text.ok()) return false;
          const auto metrics = ParseMetrics(*text);
          connections = metrics.contains(series) ? metrics.at(series) : -1;
          return connections == 0;
        },
        kPatience))
        << series << " is " << connections;
    EXPECT_TRUE(Eventually([&] { return RdmaResources() == rdma_before_; }, kRdmaPatience))
        << "RDMA resources: " << ::testing::PrintToString(RdmaResources()) << ", at the start "
        << ::testing::PrintToString(rdma_before_);
    if (fabric_ != "shm") {
      std::printf("RDMA resources: %s; at the start %s\n",
                  ::testing::PrintToString(RdmaResources()).c_str(),
                  ::testing::PrintToString(rdma_before_).c_str());
    }

    // Against a daemon that has served nobody yet.
    const ProcessFigures worn = FiguresOf(daemon().pid());
    Restart();
    const ProcessFigures fresh = FiguresOf(daemon().pid());
    std::printf("daemon: %ld descriptors, %ld threads, %ld MiB; fresh %ld, %ld, %ld MiB\n",
                long(worn.descriptors), long(worn.threads), long(worn.kib >> 10),
                long(fresh.descriptors), long(fresh.threads), long(fresh.kib >> 10));
    EXPECT_LE(worn.descriptors, fresh.descriptors + kMoreDescriptors);
    EXPECT_LE(worn.threads, fresh.threads + kMoreThreads);
    EXPECT_LE(worn.kib, fresh.kib + kMoreKib);
    // Of each of the clients that lived to the end, which had reconnected again and again.
    std::printf("clients, at most: %ld descriptors, %ld threads, %ld MiB\n",
                long(tally().most_descriptors), long(tally().most_threads),
                long(tally().most_kib >> 10));
    EXPECT_LE(tally().most_descriptors, kClientDescriptors);
    EXPECT_LE(tally().most_threads, kClientThreads);
    EXPECT_LE(tally().most_kib, kClientKib);
  }

  // gRPC's own, which come and go.
  static constexpr int64_t kMoreDescriptors = 24, kMoreThreads = 16, kMoreKib = 48 << 10;
  // A client has a connection for reading and one for writing: some 12 descriptors, 4 MiB each.
  static constexpr int64_t kClientDescriptors = 64, kClientThreads = 40, kClientKib = 128 << 10;

  std::string fabric_;
  std::mt19937 random_;
  UniqueFd tally_fd_;
  Mapping mapping_;
  std::unique_ptr<MiniCluster> cluster_;
  std::unique_ptr<ControlStubs> stubs_;
  std::map<std::string, int64_t> rdma_before_;
  std::vector<std::unique_ptr<SelfProcess>> workers_;
  uint32_t spawned_ = 0;
  uint64_t revoked_ = 0;
  int happened_[static_cast<int>(Event::kCount)] = {};
};

void Print(const char* what, const Tally::Codes& codes) {
  std::printf("%s:", what);
  for (int i = 0; i < Tally::kCodes; ++i) {
    if (codes[i] == 0) continue;
    std::printf(" %s %lu", i == 0 ? "OK" : std::string(ErrorCodeName(ErrorCode(i))).c_str(),
                static_cast<unsigned long>(codes[i]));
  }
  std::printf("\n");
}

void Print(Tally& t) {
  Print("reads", t.reads);
  Print("attaches", t.attaches);
  Print("opens", t.opens);
  Print("puts (write, commit, seal)", t.writes);
  Print("releases and aborts", t.releases);
  std::printf("checked: %lu entries of %lu MiB, %lu summaries; %lu buffers of reads that failed\n",
              static_cast<unsigned long>(t.entries_checked),
              static_cast<unsigned long>(t.bytes_checked >> 20),
              static_cast<unsigned long>(t.summaries_checked),
              static_cast<unsigned long>(t.buffers_watched));
  std::printf("clients that lived to the end: %lu reconnects, %lu renewals, %lu grants lost\n",
              static_cast<unsigned long>(t.reconnects), static_cast<unsigned long>(t.renewals),
              static_cast<unsigned long>(t.grants_lost));
  std::printf("latest end after the deadline: %ld ms a fetch, %ld ms another call\n",
              long(t.worst_fetch_ms), long(t.worst_call_ms));
}

TEST_F(Soak, KilledStoppedRevoked) {
  const MonotonicTime end = Clock::Real().Now() + seconds(absl::GetFlag(FLAGS_seconds));
  Watch(seconds(2));
  while (!HasFatalFailure() && Clock::Real().Now() < end) {
    for (const Event event : Deck()) {
      if (HasFatalFailure()) break;
      Happen(event);
      if (HasFatalFailure()) break;
      Watch(milliseconds(300 + Below(1200)));
    }
  }
  if (!HasFatalFailure()) EndWorkers();
  for (int i = 0; i < static_cast<int>(Event::kCount); ++i) {
    std::printf("%s%s: %d", i == 0 ? "" : ", ", kNames[i], happened_[i]);
  }
  std::printf(" (%lu grants); clients started: %u\n", static_cast<unsigned long>(revoked_),
              spawned_);
  Print(tally());
  ASSERT_EQ(tally().faults, 0u) << tally().first_fault.data();
  if (HasFatalFailure()) return;
  ExpectNothingIsLeft();
  // It would show nothing if nobody read.
  EXPECT_GT(tally().reads[0], 100u);
  EXPECT_GT(tally().writes[0], 20u);
  EXPECT_GT(tally().reads[static_cast<int>(ErrorCode::kStale)], 0u);
}

}  // namespace
}  // namespace oasiskv::testing

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == oasiskv::testing::kSoakWorker) {
    return RunSoakWorker(oasiskv::testing::SoakWorkerOptions::FromArguments(argc, argv));
  }
  ::testing::InitGoogleTest(&argc, argv);
  absl::ParseCommandLine(argc, argv);
  return RUN_ALL_TESTS();
}
