#include "tests/fabric/soak_worker.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/mapped_memory.h"
#include "tests/fabric/soak_content.h"
#include "tests/fabric/soak_process.h"
#include "tests/fabric/soak_tally.h"

namespace oasiskv::testing {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kRpcTimeout{3000};
constexpr milliseconds kWriteTimeout{3000};
constexpr std::byte kUntouched{0x5A};

bool IsOneOf(const absl::Status& status, std::initializer_list<ErrorCode> codes) {
  return std::find(codes.begin(), codes.end(), ErrorCodeOf(status)) != codes.end();
}

// What may meet any call while daemons die and stand still.
bool IsLoss(const absl::Status& status) {
  return IsOneOf(status, {ErrorCode::kPeerLost, ErrorCode::kDraining, ErrorCode::kDeadlineExceeded,
                          ErrorCode::kStale, ErrorCode::kLeaseExpired});
}

// Thread contract: one thread.
class Loop {
 public:
  Loop(const SoakWorkerOptions& options, uint32_t thread, Client& client, Tally& tally,
       std::atomic<uint32_t>& generations, const std::atomic<bool>& stop)
      : client_(client),
        tally_(tally),
        call_(tally.calls[options.position * kSoakThreads + thread]),
        stopped_ns_(tally.stopped_ns[options.position]),
        generations_(generations),
        stop_(stop),
        number_(options.number),
        random_(options.number * 31 + thread) {}

  void Read() {
    while (!stop_) {
      ReaderSpec spec;
      spec.name = Owner{Below(kSoakSlots), 0}.Name();
      spec.identity = TestIdentity();
      spec.geometry = SoakGeometry();
      spec.lease = milliseconds(500 + Below(1500));
      if (Below(2) == 0) spec.wait_for_seal = milliseconds(200);
      if (Below(3) == 0) {
        spec.first_head = Below(2);
        spec.head_count = 1 + Below(3);
      }
      absl::StatusOr<Reader> reader = absl::UnknownError("");
      Timed("attach", Now() + kRpcTimeout, [&] { reader = client_.Attach(spec); });
      Tally::Count(tally_.attaches, reader.status());
      if (!reader.ok()) {
        Expect(reader.status(), "attach",
               IsLoss(reader.status()) ||
                   IsOneOf(reader.status(),
                           {ErrorCode::kNotFound, ErrorCode::kNotSealed, ErrorCode::kWrongState}));
        Rest(20);
        continue;
      }
      Owner owner;
      if (!reader->sealed()) {
        Rest(5);
      } else if (!Owner::FromBlob(reader->blob(), &owner)) {
        tally_.Fault(absl::StrCat(spec.name, " has the blob \"", reader->blob(), "\""));
      } else {
        for (uint32_t i = 1 + Below(12); i > 0 && !stop_; --i) {
          if (!ReadOnce(*reader, owner)) break;
        }
      }
      if (Below(4) == 0) continue;  // given back in the background
      absl::Status released;
      Timed("release", Now() + kRpcTimeout, [&] { released = reader->Release(); });
      Tally::Count(tally_.releases, released);
    }
  }

  void Write() {
    while (!stop_) {
      const Owner owner{Below(kSoakSlots), number_ << 14 | (generations_++ & 0x3fff)};
      absl::Status gone;
      if (Below(2) == 0) {
        Timed("release of a sequence", Now() + kRpcTimeout,
              [&] { gone = client_.ReleaseSequences({owner.Name()}, TestIdentity()).status(); });
      } else {
        Timed("abort", Now() + kRpcTimeout,
              [&] { gone = client_.Abort(owner.Name(), TestIdentity(), "soak").status(); });
      }
      Tally::Count(tally_.releases, gone);
      Put(owner);
      Rest(30);
    }
  }

 private:
  static MonotonicTime Now() { return Clock::Real().Now(); }
  uint32_t Below(uint32_t limit) { return static_cast<uint32_t>(random_() % limit); }
  void Rest(uint32_t most_ms) { std::this_thread::sleep_for(milliseconds(Below(most_ms + 1))); }
  void Expect(const absl::Status& status, const char* what, bool expected) {
    if (!expected) tally_.Fault(absl::StrCat(what, ": ", status.ToString()));
  }

  // The test watches what is under way, so that a call that never returns is seen too.
  void Timed(const char* what, MonotonicTime end_by, const std::function<void()>& call) {
    std::strncpy(call_.what.data(), what, call_.what.size() - 1);
    call_.process = ::getpid();
    call_.end_by_ns = end_by.time_since_epoch().count();
    const int64_t stopped_ns = stopped_ns_;
    call();
    call_.end_by_ns = 0;
    const Duration stood_still(stopped_ns_ - stopped_ns);
    const auto over = std::chrono::duration_cast<milliseconds>(Now() - end_by - stood_still);
    const bool fetches = std::strncmp(what, "fetch", 5) == 0;
    Tally::Raise(fetches ? tally_.worst_fetch_ms : tally_.worst_call_ms, over.count());
    if (over > kSlack) {
      tally_.Fault(absl::StrCat(what, " returned ", over.count(), " ms after its deadline"));
    }
  }

  // False when the reader is of no use any more.
  bool ReadOnce(Reader& reader, const Owner& owner) {
    const MonotonicTime deadline = Now() + milliseconds(20 + Below(Below(2) == 0 ? 200 : 2000));
    if (Below(8) == 0) return ReadSummaries(reader, owner, deadline);
    const Geometry g = SoakGeometry();
    std::vector<EntryRead> reads;
    const uint32_t percent = Below(2) == 0 ? 100 : 5 + Below(60);
    for (uint32_t b = 0; b < reader.blocks(); ++b) {
      for (uint32_t l = 0; l < g.layers; ++l) {
        for (uint32_t h = 0; h < reader.head_count(); ++h) {
          if (Below(100) >= percent) continue;
          reads.push_back({BlockIndex(b), LayerIndex(l), HeadIndex(reader.first_head() + h)});
        }
      }
    }
    buffer_.assign(reads.size() * g.entry_bytes(), kUntouched);
    for (size_t i = 0; i < reads.size(); ++i) reads[i].into = buffer_.data() + i * g.entry_bytes();
    absl::Status status;
    const bool cancels = Below(16) == 0;
    Timed(cancels ? "fetch, cancelled" : "fetch", deadline, [&] {
      auto fetch = reader.FetchEntries(reads, deadline);
      if (cancels) {
        Rest(10);
        fetch->Cancel();
      }
      status = fetch->Wait();
    });
    Tally::Count(tally_.reads, status);
    if (!status.ok()) return Ended(status);
    for (const EntryRead& r : reads) {
      const std::string wrong = WrongIn(owner, r.block.value(), r.layer.value(), r.head.value(),
                                        {r.into, g.entry_bytes()});
      if (!wrong.empty()) {
        tally_.Fault(absl::StrCat("a wrong byte in a read that was OK: ", wrong));
        return false;
      }
    }
    tally_.entries_checked += reads.size();
    tally_.bytes_checked += buffer_.size();
    return true;
  }

  bool ReadSummaries(Reader& reader, const Owner& owner, MonotonicTime deadline) {
    const Geometry g = SoakGeometry();
    const uint32_t block_bytes = g.layers * reader.head_count() * g.summary_bytes();
    buffer_.assign(reader.blocks() * block_bytes, kUntouched);
    absl::Status status;
    Timed("fetch of summaries", deadline, [&] {
      status = reader.FetchSummaries(BlockIndex(0), reader.blocks(), buffer_.data(), deadline);
    });
    Tally::Count(tally_.reads, status);
    if (!status.ok()) return Ended(status);
    const std::byte* at = buffer_.data();
    for (uint32_t b = 0; b < reader.blocks(); ++b) {
      for (uint32_t l = 0; l < g.layers; ++l) {
        for (uint32_t h = 0; h < reader.head_count(); ++h, at += g.summary_bytes()) {
          if (!SummaryIsRight(owner, b, l, reader.first_head() + h, {at, g.summary_bytes()})) {
            tally_.Fault(absl::StrCat("a wrong summary of block ", b, " of ", owner.Name()));
            return false;
          }
        }
      }
    }
    tally_.summaries_checked += reader.blocks() * g.layers * reader.head_count();
    return true;
  }

  // The buffer was given back: nothing may write to it any more.
  bool Ended(const absl::Status& status) {
    std::fill(buffer_.begin(), buffer_.end(), kUntouched);
    Rest(30);
    if (std::any_of(buffer_.begin(), buffer_.end(), [](std::byte b) { return b != kUntouched; })) {
      tally_.Fault(
          absl::StrCat("a buffer was written to after its fetch had ended as ", status.ToString()));
    }
    ++tally_.buffers_watched;
    Expect(status, "fetch", IsLoss(status) || IsOneOf(status, {ErrorCode::kCancelled}));
    return IsOneOf(status, {ErrorCode::kDeadlineExceeded, ErrorCode::kCancelled});
  }

  void Put(const Owner& owner) {
    ProducerSpec spec;
    spec.name = owner.Name();
    spec.identity = TestIdentity();
    spec.geometry = SoakGeometry();
    spec.blocks = 8 + Below(17);
    spec.lease = milliseconds(500 + Below(1500));
    absl::StatusOr<Producer> producer = absl::UnknownError("");
    Timed("open", Now() + kRpcTimeout, [&] { producer = client_.Open(spec); });
    Tally::Count(tally_.opens, producer.status());
    if (!producer.ok()) {
      Expect(producer.status(), "open",
             IsLoss(producer.status()) ||
                 IsOneOf(producer.status(), {ErrorCode::kAlreadyExists, ErrorCode::kCapacity}));
      return;
    }
    const uint32_t parts = 1 + Below(3);
    const bool gives_up = Below(10) == 0;
    absl::Status status;
    for (uint32_t part = 0; part < parts && status.ok(); ++part) {
      status = WriteBlocks(*producer, owner, spec.blocks * part / parts,
                           spec.blocks * (part + 1) / parts);
      if (status.ok() && Below(2) == 0) {
        Timed("commit", Now() + kRpcTimeout, [&] { status = producer->CommitWritten(); });
      }
    }
    if (status.ok() && !gives_up) {
      SealSpec seal;
      seal.token_count = uint64_t{spec.blocks} * spec.geometry.block_tokens;
      seal.blob = owner.ToBlob();
      // It may have to commit first.
      Timed("seal", Now() + 2 * kRpcTimeout, [&] { status = producer->Seal(seal); });
    }
    Tally::Count(tally_.writes, status);
    Expect(status, "put",
           status.ok() || IsLoss(status) ||
               IsOneOf(status, {ErrorCode::kNotFound, ErrorCode::kWrongState}));
    Timed("end of a producer", Now() + kRpcTimeout, [&] { Producer(*std::move(producer)); });
  }

  absl::Status WriteBlocks(Producer& producer, const Owner& owner, uint32_t first, uint32_t last) {
    const Geometry g = SoakGeometry();
    const uint32_t tokens = (last - first) * g.block_tokens, row = g.key_bytes();
    std::vector<std::byte> entry(g.entry_bytes()), keys(uint64_t{tokens} * g.kv_heads * row),
        values(keys.size());
    absl::Status status;
    for (uint32_t l = 0; l < g.layers && status.ok(); ++l) {
      for (uint32_t b = first; b < last; ++b) {
        for (uint32_t h = 0; h < g.kv_heads; ++h) {
          FillEntry(owner, b, l, h, entry);
          for (uint32_t t = 0; t < g.block_tokens; ++t) {
            const uint64_t to = (((b - first) * g.block_tokens + t) * g.kv_heads + h) * row;
            std::memcpy(keys.data() + to, entry.data() + t * row, row);
            std::memcpy(values.data() + to, entry.data() + g.half_entry_bytes() + t * row, row);
          }
        }
      }
      const int64_t token_stride = int64_t{g.kv_heads} * row;
      Timed("write", Now() + kWriteTimeout, [&] {
        status = producer.WriteTokens(LayerIndex(l), uint64_t{first} * g.block_tokens, tokens,
                                      {keys.data(), token_stride, row},
                                      {values.data(), token_stride, row});
      });
    }
    return status;
  }

  Client& client_;
  Tally& tally_;
  Tally::Call& call_;
  const std::atomic<int64_t>& stopped_ns_;
  std::atomic<uint32_t>& generations_;
  const std::atomic<bool>& stop_;
  const uint32_t number_;
  std::mt19937 random_;
  std::vector<std::byte> buffer_;
};

// The daemon may be down or standing still just now.
std::unique_ptr<Client> ConnectSooner(const SoakWorkerOptions& worker, Tally& tally) {
  ClientOptions options;
  options.address = worker.address;
  options.fabric = worker.fabric;
  if (worker.fabric == "verbs") options.verbs_device = "rxe0";
  options.verbs_peer_timeout = milliseconds(1500);
  options.rpc_timeout = kRpcTimeout;
  options.read_timeout = kWriteTimeout;
  while (tally.faults == 0) {
    auto client = Client::Connect(options);
    if (client.ok()) return *std::move(client);
    if (!IsLoss(client.status())) {
      tally.Fault(absl::StrCat("connect: ", client.status().ToString()));
    }
  }
  return nullptr;
}

}  // namespace

std::vector<std::string> SoakWorkerOptions::ToArguments() const {
  return {kSoakWorker,
          writer ? "writer" : "reader",
          address,
          fabric,
          absl::StrCat(number),
          absl::StrCat(position),
          absl::StrCat(tally_fd)};
}

SoakWorkerOptions SoakWorkerOptions::FromArguments(int argc, char** argv) {
  SoakWorkerOptions out;
  if (argc != 8) std::exit(2);
  out.writer = std::string(argv[2]) == "writer";
  out.address = argv[3];
  out.fabric = argv[4];
  out.number = static_cast<uint32_t>(std::atoi(argv[5]));
  out.position = static_cast<uint32_t>(std::atoi(argv[6]));
  out.tally_fd = std::atoi(argv[7]);
  return out;
}

int RunSoakWorker(const SoakWorkerOptions& options) {
  auto shared = Mapping::Map(options.tally_fd, sizeof(Tally), Protection::kReadWrite);
  if (!shared.ok()) return 2;
  Tally& tally = *reinterpret_cast<Tally*>(shared->data());
  auto client = ConnectSooner(options, tally);
  if (client == nullptr) return 1;
  if (options.number == 0) {
    std::printf("%s\n", client->Describe().c_str());
    std::fflush(stdout);
  }
  std::atomic<bool> stop{false};
  std::atomic<uint32_t> generations{0};
  std::vector<std::unique_ptr<Loop>> loops;
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kSoakThreads; ++i) {
    loops.push_back(std::make_unique<Loop>(options, i, *client, tally, generations, stop));
    threads.emplace_back(
        [&options, loop = loops.back().get()] { options.writer ? loop->Write() : loop->Read(); });
  }
  char end = 0;
  while (::read(STDIN_FILENO, &end, 1) > 0) {
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  const ClientStats stats = client->Stats();
  tally.reconnects += stats.reconnects;
  tally.stale_reads += stats.stale_reads;
  tally.renewals += stats.renewals;
  tally.grants_lost += stats.grants_lost;
  const ProcessFigures figures = FiguresOf(::getpid());
  Tally::Raise(tally.most_descriptors, figures.descriptors);
  Tally::Raise(tally.most_threads, figures.threads);
  Tally::Raise(tally.most_kib, figures.kib);
  return 0;
}

}  // namespace oasiskv::testing
