// Every error that a read can have, each with its own code, through every read entry point.
#include <functional>
#include <thread>

#include "tests/integration/client_fixture.h"

namespace oasiskv::testing {
namespace {

using ClientErrorsTest = ClientTest;
INSTANTIATE_OVER_FABRICS(ClientErrorsTest);
// On these fabrics the daemon does not see a read.
using ClientOneSidedTest = ClientTest;
INSTANTIATE_TEST_SUITE_P(Fabrics, ClientOneSidedTest, ::testing::Values("shm"), FabricName);

constexpr std::byte kUntouched{0x5A};

// The read entry points, each reading layer 1, head `head` of `block` into `into` (one frame's
// worth of bytes).
struct EntryPoint {
  const char* name;
  std::function<absl::Status(Reader&, uint32_t block, std::byte* into)> read;
};

std::vector<EntryPoint> EntryPoints() {
  const auto entry = [](uint32_t block, std::byte* into) {
    return EntryRead{BlockIndex(block), LayerIndex(1), HeadIndex(2), into};
  };
  return {
      {"entries",
       [entry](Reader& r, uint32_t block, std::byte* into) {
         const EntryRead read = entry(block, into);
         return r.FetchEntries({&read, 1}, Soon())->Wait();
       }},
      {"async",
       [entry](Reader& r, uint32_t block, std::byte* into) {
         const EntryRead read = entry(block, into);
         auto fetch = r.FetchEntries({&read, 1}, Soon());
         EXPECT_TRUE(Eventually([&] { return fetch->Done(); }));
         return fetch->Wait();
       }},
      {"layers",
       [](Reader& r, uint32_t block, std::byte* into) {
         const LayerRead read{BlockIndex(block), LayerIndex(0), 2, into};
         return r.FetchLayers({&read, 1}, Soon())->Wait();
       }},
      {"summaries",
       [](Reader& r, uint32_t block, std::byte* into) {
         return r.FetchSummaries(BlockIndex(block), 1, into, Soon());
       }},
      {"topk",
       [](Reader& r, uint32_t block, std::byte* into) {
         const auto item = static_cast<int32_t>(block);
         return r.FetchTopK(LayerIndex(1), HeadIndex(2), {&item, 1}, into, 0, Soon());
       }},
  };
}

TEST_P(ClientErrorsTest, EachRefusalHasItsOwnCode) {
  StartCluster();
  auto client = Connect();
  const Geometry g = QwenLike();
  const Content content(g, 64, 1);
  ASSERT_OK_AND_ASSIGN(Producer producer, client->Open(SpecOf("a", content)));
  ASSERT_OK(WriteAll(producer, content));
  ASSERT_OK(producer.Commit(LayerIndex(0), 3, BlockIndex(0), 2));
  ReaderSpec spec = ReadSpecOf("a", g);
  spec.first_head = 2;
  spec.head_count = 2;
  ASSERT_OK_AND_ASSIGN(Reader reader, client->Attach(spec));
  std::vector<std::byte> into(g.frame_bytes(), kUntouched);

  for (const EntryPoint& point : EntryPoints()) {
    SCOPED_TRACE(point.name);
    EXPECT_OK(point.read(reader, 0, into.data()));
    EXPECT_THAT(point.read(reader, 2, into.data()), Fails(ErrorCode::kNotCommitted));
    EXPECT_THAT(point.read(reader, 4, into.data()), Fails(ErrorCode::kOutOfRange));
    EXPECT_THAT(point.read(reader, 0x7FFFFFFF, into.data()), Fails(ErrorCode::kOutOfRange));
  }
  const auto read_one = [&](uint32_t block, uint32_t layer, uint32_t head) {
    const EntryRead reads[] = {
        {BlockIndex(0), LayerIndex(0), HeadIndex(2), into.data()},
        {BlockIndex(block), LayerIndex(layer), HeadIndex(head), into.data()}};
    return reader.FetchEntries(reads, Soon())->Wait();
  };
  EXPECT_THAT(read_one(0, 3, 2), Fails(ErrorCode::kOutOfRange));
  EXPECT_THAT(read_one(0, 0, 8), Fails(ErrorCode::kOutOfRange));
  EXPECT_THAT(read_one(0, 0, 1), Fails(ErrorCode::kForeign));
  EXPECT_THAT(read_one(0, 0, 4), Fails(ErrorCode::kForeign));
  EXPECT_THAT(std::string(read_one(0, 0, 4).message()),
              ::testing::AllOf(::testing::HasSubstr("entries[1]"), ::testing::HasSubstr("head 4")));
  EXPECT_THAT(reader.FetchTopK(LayerIndex(0), HeadIndex(0), std::vector<int32_t>{0}, into.data(), 0,
                               Soon()),
              Fails(ErrorCode::kForeign));

  ASSERT_OK(reader.Release());
  for (const EntryPoint& point : EntryPoints()) {
    SCOPED_TRACE(point.name);
    std::fill(into.begin(), into.end(), kUntouched);
    EXPECT_THAT(point.read(reader, 0, into.data()), Fails(ErrorCode::kStale));
    EXPECT_EQ(into, std::vector<std::byte>(into.size(), kUntouched));
  }
  ASSERT_OK(reader.Release());  // twice is not an error
  // The daemon lives on.
  ASSERT_OK_AND_ASSIGN(Reader again, client->Attach(ReadSpecOf("a", g)));
  EXPECT_OK(EntryPoints()[0].read(again, 0, into.data()));
}

TEST_P(ClientErrorsTest, AttachRefusesWhatDoesNotMatch) {
  StartCluster();
  auto client = Connect();
  const Content content(QwenLike(), 64, 1);
  ASSERT_OK(Put(*client, "a", content));
  EXPECT_THAT(client->Attach(ReadSpecOf("b", QwenLike())).status(), Fails(ErrorCode::kNotFound));
  ReaderSpec spec = ReadSpecOf("a", QwenLike());
  spec.geometry.block_tokens = 32;
  const absl::Status mismatch = client->Attach(spec).status();
  EXPECT_THAT(mismatch, Fails(ErrorCode::kGeometryMismatch));
  EXPECT_THAT(std::string(mismatch.message()),
              ::testing::AllOf(::testing::HasSubstr("block_tokens"), ::testing::HasSubstr("16"),
                               ::testing::HasSubstr("32")));
  spec = ReadSpecOf("a", QwenLike());
  spec.identity.revision = "r2";
  EXPECT_THAT(client->Attach(spec).status(), Fails(ErrorCode::kIdentityMismatch));
  spec = ReadSpecOf("a", QwenLike());
  spec.first_head = 6;
  spec.head_count = 4;
  EXPECT_THAT(client->Attach(spec).status(), Fails(ErrorCode::kOutOfRange));
  EXPECT_THAT(client->Open(SpecOf("a", content)).status(), Fails(ErrorCode::kAlreadyExists));
  ProducerSpec huge = SpecOf("huge", content);
  huge.blocks = 200000;
  EXPECT_THAT(client->Open(huge).status(), Fails(ErrorCode::kCapacity));
}

// A is stored and aborted, B takes the same memory. The keeper is held up, so that A's reader
// cannot know: only the grant word (shm) or the daemon (ucx) can tell.
TEST_P(ClientErrorsTest, ReusedMemoryIsStaleThroughEveryEntryPoint) {
  StartCluster(DaemonMode::kInProcess, {"--pool_bytes=4MiB", "--slab_bytes=2MiB"});
  auto owner = Connect();
  auto client = Connect();
  const Geometry g = QwenLike();
  const Content a(g, 64, 1);
  ASSERT_OK(Put(*owner, "a", a));
  ASSERT_OK_AND_ASSIGN(Reader reader, client->Attach(ReadSpecOf("a", g)));
  std::vector<std::byte> into(g.frame_bytes());
  ASSERT_OK(EntryPoints()[0].read(reader, 0, into.data()));
  ASSERT_OK(owner->Abort("a", TestIdentity(), "test").status());
  // All of the pool, so that every frame of A is B's now.
  const Content b(g, 16 * 2 * ((2 << 20) / g.frame_stride()), 2);
  ASSERT_OK(Put(*owner, "b", b));
  const uint64_t stale_before = client->Stats().stale_reads;
  for (const EntryPoint& point : EntryPoints()) {
    SCOPED_TRACE(point.name);
    for (uint32_t block = 0; block < a.blocks(); ++block) {
      std::fill(into.begin(), into.end(), kUntouched);
      EXPECT_THAT(point.read(reader, block, into.data()), Fails(ErrorCode::kStale));
      EXPECT_EQ(into, std::vector<std::byte>(into.size(), kUntouched)) << "not a byte of B's";
    }
  }
  EXPECT_EQ(client->Stats().stale_reads - stale_before, EntryPoints().size() * a.blocks());
}

// A is aborted and B written while a read of A is between its data and its answer.
TEST_P(ClientOneSidedTest, ReuseBetweenDataAndAnswerIsStale) {
  StartCluster(DaemonMode::kInProcess, {"--pool_bytes=4MiB", "--slab_bytes=2MiB"});
  auto owner = Connect();
  auto client = Connect();
  const Geometry g = QwenLike();
  ASSERT_OK(Put(*owner, "a", Content(g, 64, 1)));
  ASSERT_OK_AND_ASSIGN(Reader reader, client->Attach(ReadSpecOf("a", g)));
  for (const EntryPoint& point : EntryPoints()) {
    SCOPED_TRACE(point.name);
    PausePoints::Arm("shm.read.before_check");
    absl::Status status;
    std::vector<std::byte> into(g.frame_bytes());
    std::thread fetch([&] { status = point.read(reader, 0, into.data()); });
    ASSERT_TRUE(PausePoints::WaitReached("shm.read.before_check"));
    ASSERT_OK(owner->Abort("a", TestIdentity(), "test").status());
    PausePoints::Release("shm.read.before_check");
    fetch.join();
    EXPECT_THAT(status, Fails(ErrorCode::kStale));
    ASSERT_EVENTUALLY(PausePoints::Waiting() == 0);
    ASSERT_OK(Put(*owner, "a", Content(g, 64, 1)));
    ASSERT_OK_AND_ASSIGN(reader, client->Attach(ReadSpecOf("a", g)));
  }
}

// A pause point holds up renewals, and the lease ends while a fetch is between the look-up and the
// arrival: what arrived does not count, although the daemon's grant word may still be valid.
TEST_P(ClientErrorsTest, LeaseEndsBeforeTheArrival) {
  StartCluster();
  ClientOptions options = Options();
  options.lease = std::chrono::milliseconds(900);
  auto client = Connect(options);
  const Geometry g = QwenLike();
  const Content content(g, 64, 1);
  ASSERT_OK(Put(*Connect(), "a", content));
  for (const char* point : {"client.fetch.posted", "client.fetch.arrived"}) {
    SCOPED_TRACE(point);
    PausePoints::Arm("client.keeper.renew");
    ASSERT_OK_AND_ASSIGN(Reader reader, client->Attach(ReadSpecOf("a", g)));
    ASSERT_TRUE(PausePoints::WaitReached("client.keeper.renew"));
    ASSERT_OK(reader.Health());
    std::vector<std::byte> into(g.entry_bytes());
    const EntryRead read{BlockIndex(0), LayerIndex(0), HeadIndex(0), into.data()};
    PausePoints::Arm(point);
    auto fetch = reader.FetchEntries({&read, 1}, Soon());
    absl::Status status;
    std::thread waiter([&] { status = fetch->Wait(); });
    ASSERT_TRUE(PausePoints::WaitReached(point));
    ASSERT_EVENTUALLY(!reader.Health().ok());
    PausePoints::Release(point);
    waiter.join();
    EXPECT_THAT(status, Fails(ErrorCode::kLeaseExpired));
    // Nothing more is started either.
    const uint64_t reads = client->Stats().reads;
    EXPECT_THAT(reader.FetchEntries({&read, 1}, Soon())->Wait(), Fails(ErrorCode::kLeaseExpired));
    EXPECT_EQ(client->Stats().reads, reads);
    PausePoints::Release("client.keeper.renew");
    ASSERT_EVENTUALLY(PausePoints::Waiting() == 0);  // only then can the point be armed again
  }
  EXPECT_EQ(client->Stats().expired_reads, 4u);
}

// The daemon expires a grant whose holder does not renew; the holder is told LEASE_EXPIRED, and the
// counter moves.
TEST_P(ClientErrorsTest, ExpiredGrantIsLost) {
  StartCluster();
  ClientOptions options = Options();
  options.lease = std::chrono::milliseconds(600);
  auto client = Connect(options);
  const Geometry g = QwenLike();
  ASSERT_OK(Put(*Connect(), "a", Content(g, 64, 1)));
  PausePoints::Arm("client.keeper.renew");
  ASSERT_OK_AND_ASSIGN(Reader reader, client->Attach(ReadSpecOf("a", g)));
  ASSERT_TRUE(PausePoints::WaitReached("client.keeper.renew"));
  ASSERT_EVENTUALLY(Capacity().grants_reader == 0);
  PausePoints::Release("client.keeper.renew");
  ASSERT_EVENTUALLY(client->Stats().grants_lost == 1);
  std::vector<std::byte> into(g.frame_bytes());
  for (const EntryPoint& point : EntryPoints()) {
    EXPECT_THAT(point.read(reader, 0, into.data()), Fails(ErrorCode::kLeaseExpired)) << point.name;
  }
}

// Leases are renewed: a reader with a short one lives for many of them.
TEST_P(ClientErrorsTest, KeeperRenewsManyInOneCall) {
  StartCluster();
  ClientOptions options = Options();
  options.lease = std::chrono::milliseconds(600);
  auto client = Connect(options);
  const Geometry g = QwenLike();
  ASSERT_OK(Put(*client, "a", Content(g, 64, 1)));
  std::vector<Reader> readers;
  for (int i = 0; i < 50; ++i) {
    ASSERT_OK_AND_ASSIGN(Reader reader, client->Attach(ReadSpecOf("a", g)));
    readers.push_back(std::move(reader));
  }
  const uint64_t before = client->Stats().renewals;
  ASSERT_EVENTUALLY(client->Stats().renewals >= before + 6);
  for (Reader& reader : readers) EXPECT_OK(reader.Health());
  EXPECT_EQ(client->Stats().grants_lost, 0u);
  EXPECT_EQ(Capacity().grants_reader, 50u);
  readers.clear();
  ASSERT_EVENTUALLY(Capacity().grants_reader == 0);
}

TEST_P(ClientErrorsTest, WrongChecksumIsNotHandedOut) {
  StartCluster();
  const Geometry g = QwenLike();
  const Content content(g, 64, 1);
  auto writer = Connect();
  ProducerSpec spec = SpecOf("a", content);
  spec.checksums = true;
  ASSERT_OK(Put(*writer, spec, content));
  ClientOptions options = Options();
  options.verify_checksums = true;
  auto client = Connect(options);
  ASSERT_OK_AND_ASSIGN(Reader reader, client->Attach(ReadSpecOf("a", g)));
  // Spoil one byte of one entry in the daemon's own memory.
  const auto memory = cluster_->daemon().daemon()->core()->Export();
  const auto entry = content.Entry(2, 1, 3);
  std::byte* spoiled = nullptr;
  for (const auto& arena : memory.arenas) {
    std::byte* end = arena.base + arena.bytes;
    std::byte* found = std::search(arena.base, end, entry.begin(), entry.end());
    if (found != end) spoiled = found + 100;
  }
  ASSERT_NE(spoiled, nullptr);
  *spoiled ^= std::byte{1};
  std::vector<std::byte> into(2 * uint64_t{g.entry_bytes()});
  const EntryRead reads[] = {
      {BlockIndex(1), LayerIndex(1), HeadIndex(3), into.data()},
      {BlockIndex(2), LayerIndex(1), HeadIndex(3), into.data() + g.entry_bytes()}};
  const absl::Status status = reader.FetchEntries(reads, Soon())->Wait();
  EXPECT_THAT(status, Fails(ErrorCode::kChecksumMismatch));
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("block 2, layer 1, head 3"));
  EXPECT_EQ(std::vector<std::byte>(into.begin() + g.entry_bytes(), into.end()),
            std::vector<std::byte>(g.entry_bytes()));
  EXPECT_EQ(client->Stats().checksum_failures, 1u);
}

TEST_P(ClientErrorsTest, WriterThatWasThrownAwayIsStale) {
  StartCluster();
  auto client = Connect();
  const Content content(QwenLike(), 64, 1);
  ASSERT_OK_AND_ASSIGN(Producer producer, client->Open(SpecOf("a", content)));
  ASSERT_OK(producer.WriteTokens(LayerIndex(0), 0, 32, content.Keys(0, 0), content.Values(0, 0)));
  ASSERT_OK(Connect()->Abort("a", TestIdentity(), "test").status());
  EXPECT_THAT(
      producer.WriteTokens(LayerIndex(0), 32, 16, content.Keys(0, 32), content.Values(0, 32)),
      Fails(ErrorCode::kStale));
  EXPECT_THAT(producer.CommitWritten(), Fails(ErrorCode::kStale));
  // Another takes the name; the old handle's end must not touch it.
  ASSERT_OK(Put(*client, "a", content));
  { const Producer dropped = std::move(producer); }
  ASSERT_OK_AND_ASSIGN(Reader reader, client->Attach(ReadSpecOf("a", QwenLike())));
  EXPECT_TRUE(reader.sealed());
}

// A writer that lost its grant fences itself, so that its frames leave quarantine though the
// connection lives.
TEST_P(ClientErrorsTest, LostWriterIsFenced) {
  StartCluster();
  ClientOptions options = Options();
  options.lease = std::chrono::milliseconds(600);
  auto client = Connect(options);
  const uint64_t before = Capacity().used_bytes;
  const Content content(QwenLike(), 64, 1);
  ASSERT_OK_AND_ASSIGN(Producer producer, client->Open(SpecOf("a", content)));
  ASSERT_OK(WriteAll(producer, content));
  ASSERT_OK(Connect()->Abort("a", TestIdentity(), "test").status());
  ASSERT_EVENTUALLY(client->Stats().grants_lost == 1);
  ASSERT_EVENTUALLY(Capacity().used_bytes == before && Capacity().quarantined_bytes == 0);
}

TEST_P(ClientErrorsTest, ReleaseEndsWhatIsInFlight) {
  StartCluster();
  auto client = Connect();
  const Geometry g = QwenLike();
  ASSERT_OK(Put(*client, "a", Content(g, 64, 1)));
  ASSERT_OK_AND_ASSIGN(Reader reader, client->Attach(ReadSpecOf("a", g)));
  std::vector<std::byte> into(g.entry_bytes());
  const EntryRead read{BlockIndex(0), LayerIndex(0), HeadIndex(0), into.data()};
  // One that no thread waits for, and one that a thread waits for.
  auto idle = reader.FetchEntries({&read, 1}, Soon());
  PausePoints::Arm("client.fetch.arrived");
  auto waited = reader.FetchEntries({&read, 1}, Soon());
  absl::Status status;
  std::thread waiter([&] { status = waited->Wait(); });
  ASSERT_TRUE(PausePoints::WaitReached("client.fetch.arrived"));
  ASSERT_OK(reader.Release());
  PausePoints::Release("client.fetch.arrived");
  waiter.join();
  EXPECT_THAT(idle->Wait(), Fails(ErrorCode::kStale));
  EXPECT_THAT(status, Fails(ErrorCode::kStale));
}

TEST_P(ClientErrorsTest, ConnectSaysWhatIsWrong) {
  StartCluster();
  ClientOptions options = Options();
  options.rpc_timeout = std::chrono::milliseconds(300);
  options.address = "127.0.0.1:1";
  EXPECT_THAT(Client::Connect(options).status(), Fails(ErrorCode::kPeerLost));
  options.address = "no port";
  EXPECT_THAT(Client::Connect(options).status(), Fails(ErrorCode::kInvalidArgument));
  options.address = "127.0.0.1";
  EXPECT_THAT(Client::Connect(options).status(), Fails(ErrorCode::kInvalidArgument));
  // A named fabric that is not served is never replaced; auto says what it took and why.
  StartCluster(DaemonMode::kInProcess, {GetParam() == "shm" ? "--fabrics=ucx" : "--fabrics=shm"});
  EXPECT_THAT(Client::Connect(Options()).status(), Fails(ErrorCode::kUnsupported));
  options = Options();
  options.fabric = "auto";
  auto client = Connect(options);
  EXPECT_THAT(
      client->Describe(),
      ::testing::HasSubstr(GetParam() == "shm" ? "ucx, because the daemon does not serve shm"
                                               : "shm: the daemon is on this host"));
}

}  // namespace
}  // namespace oasiskv::testing
