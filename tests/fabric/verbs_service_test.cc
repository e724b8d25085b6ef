// The whole way over verbs: a daemon process on rxe1, the client library on rxe0.
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "oasiskv/sequence_source.h"
#include "oasiskv/v1/kv_memory.grpc.pb.h"
#include "tests/fabric/held_writer.h"
#include "tests/fabric/verbs_service_fixture.h"
#include "tests/support/self_process.h"

namespace oasiskv::testing {
namespace {

using std::chrono::seconds;

absl::Status FetchOne(Reader& reader, uint32_t block, uint32_t layer, uint32_t head) {
  std::vector<std::byte> into(reader.geometry().entry_bytes());
  const EntryRead read{BlockIndex(block), LayerIndex(layer), HeadIndex(head), into.data()};
  return Fetch(reader, {&read, 1});
}

TEST_F(VerbsServiceTest, PutCommitAttachFetchRelease) {
  const Content content(QwenLike(), 5 * 16 + 3, 1);
  ClientOptions options = OptionsFor(address());
  options.verify_checksums = true;
  auto client = Client::Connect(options);
  ASSERT_OK(client.status());
  EXPECT_EQ((*client)->FabricName(), "verbs");
  EXPECT_THAT((*client)->Describe(), ::testing::HasSubstr("rxe0"));

  ProducerSpec spec = SpecOf("a", content);
  spec.checksums = true;
  ASSERT_OK(Put(**client, spec, content));
  auto reader = (*client)->Attach(ReadSpecOf("a", content.geometry()));
  ASSERT_OK(reader.status());
  EXPECT_FALSE(reader->local());
  std::vector<std::byte> into;
  const auto reads = AllEntries(content, into);
  ASSERT_OK(Fetch(*reader, reads));
  EXPECT_TRUE(AllRight(content, reads));
  EXPECT_EQ((*client)->Stats().checksums_verified, reads.size());
  EXPECT_GE((*client)->Stats().bytes_read, into.size());
  ASSERT_OK(reader->Release());
  ASSERT_OK((*client)->ReleaseSequences({"a"}, TestIdentity()).status());
  EXPECT_TRUE(Idle());  // the writer fenced before it sealed: nothing is in quarantine

  const auto health = RunProcess({OasisctlPath(), "health", "--address=" + address()}, kPatience);
  ASSERT_OK(health.status());
  EXPECT_THAT(health->output, ::testing::HasSubstr("verbs on rxe1 port 1, GID"));
  EXPECT_THAT(health->output, ::testing::Not(::testing::HasSubstr("ucx")));
}

// Fails when fetches into registered memory go by way of a copy, or others do not.
TEST_F(VerbsServiceTest, FetchesLandInRegisteredBuffersDirectly) {
  const Content content(QwenLike(), 4 * 16, 1);
  auto client = Connect();
  ASSERT_NE(client, nullptr);
  ASSERT_OK(Put(*client, "a", content));
  auto reader = client->Attach(ReadSpecOf("a", content.geometry()));
  ASSERT_OK(reader.status());
  std::vector<std::byte> into;
  const auto reads = AllEntries(content, into);
  const ClientStats put = client->Stats();
  ASSERT_OK(Fetch(*reader, reads));
  const ClientStats copied = client->Stats();
  EXPECT_EQ(copied.bytes_bounced - put.bytes_bounced, into.size());
  EXPECT_EQ(copied.bytes_direct, put.bytes_direct);
  std::fill(into.begin(), into.end(), kBeforeFetch);
  {
    auto buffer = client->RegisterBuffer(into);
    ASSERT_OK(buffer.status());
    EXPECT_TRUE(buffer->direct());
    ASSERT_OK(Fetch(*reader, reads));
    EXPECT_TRUE(AllRight(content, reads));
    // Unregistered while on its way: it ends as it would have.
    auto fetch = reader->FetchEntries(reads, reader->DefaultDeadline());
    *buffer = RegisteredBuffer();
    ASSERT_OK(fetch->Wait());
    EXPECT_TRUE(AllRight(content, reads));
  }
  const ClientStats direct = client->Stats();
  EXPECT_GE(direct.bytes_direct - copied.bytes_direct, into.size());
  ASSERT_OK(Fetch(*reader, reads));
  EXPECT_EQ(client->Stats().bytes_direct, direct.bytes_direct);
}

TEST_F(VerbsServiceTest, TheHostCacheIsReadIntoDirectly) {
  const Content content(QwenLike(), 8 * 16, 1);
  auto client = Connect();
  ASSERT_NE(client, nullptr);
  ASSERT_OK(Put(*client, "a", content));
  auto reader = client->Attach(ReadSpecOf("a", content.geometry()));
  ASSERT_OK(reader.status());
  auto source = MakeSequenceSource({{std::make_shared<Reader>(*std::move(reader))}}, {});
  ASSERT_OK(source.status());
  EXPECT_TRUE((*source)->KeepsFetched());
  std::vector<std::byte> into;
  const auto reads = AllEntries(content, into);
  const ClientStats before = client->Stats();
  ASSERT_OK((*source)->Fetch(reads, Clock::Real().Now() + kPatience)->Wait());
  EXPECT_TRUE(AllRight(content, reads));
  const ClientStats after = client->Stats();
  EXPECT_EQ(after.bytes_direct - before.bytes_direct, into.size());
  EXPECT_EQ(after.bytes_bounced, before.bytes_bounced);
}

// A new connection has other keys: the buffer is registered with it by itself.
TEST_F(VerbsServiceTest, ARegisteredBufferHoldsOverAReconnect) {
  const Content content(QwenLike(), 16, 1);
  auto client = Connect();
  ASSERT_NE(client, nullptr);
  std::vector<std::byte> into;
  const auto reads = AllEntries(content, into);
  auto buffer = client->RegisterBuffer(into);
  ASSERT_OK(buffer.status());
  ASSERT_OK(cluster_->daemon().Restart());
  ASSERT_TRUE(Eventually([&] { return Put(*client, "a", content).ok(); }, kPatience));
  EXPECT_GE(client->Stats().reconnects, 1u);
  auto reader = client->Attach(ReadSpecOf("a", content.geometry()));
  ASSERT_OK(reader.status());
  EXPECT_TRUE(buffer->direct());
  const uint64_t before = client->Stats().bytes_direct;
  ASSERT_OK(Fetch(*reader, reads));
  EXPECT_TRUE(AllRight(content, reads));
  EXPECT_EQ(client->Stats().bytes_direct - before, into.size());
}

// Without ib_read_bw the bench measures, and says what it did not measure and what is missing.
TEST_F(VerbsServiceTest, TheBenchNamesThePackageOfACeilingThatIsMissing) {
  cluster_.reset();
  std::string bench = OasisctlPath();
  bench.replace(bench.rfind('/') + 1, std::string::npos, "oasis-bench");
  const auto run = RunProcess(
      {"/usr/bin/env", "PATH=/nowhere", bench, "fetch", "--fabric=verbs", "--verbs_device=rxe0",
       "--daemon_verbs_device=rxe1", "--entry_bytes=8192", "--batch=16", "--depth=2", "--rounds=1",
       "--seconds=0.1", "--span_bytes=4194304", "--verbs_peer_timeout=3s", "--json"},
      kPatience);
  ASSERT_OK(run.status());
  EXPECT_EQ(run->exit_code, 0) << run->output;
  EXPECT_THAT(run->output, ::testing::HasSubstr("not measured (ib_read_bw is not installed; Debian "
                                                "has it in perftest)"));
  EXPECT_THAT(run->output, ::testing::HasSubstr("\"direct_share\":1.0"));
}

// Neither an aborted sequence's bytes nor those of the sequence that has its memory now.
TEST_F(VerbsServiceTest, AnAbortedSequenceWhoseMemoryIsAnothersIsStale) {
  const Content old(QwenLike(), 64, 1), other(QwenLike(), 64, 2);
  auto ours = Connect(), theirs = Connect();
  ASSERT_OK(Put(*ours, "a", old));
  auto reader = ours->Attach(ReadSpecOf("a", old.geometry()));
  ASSERT_OK(reader.status());
  ASSERT_OK(theirs->Abort("a", TestIdentity(), "test").status());
  ASSERT_OK(Put(*theirs, "b", other));
  std::vector<std::byte> into;
  EXPECT_THAT(Fetch(*reader, AllEntries(old, into)), Fails(ErrorCode::kStale));
  EXPECT_GE(ours->Stats().stale_reads, 1u);
  // The connection is as good as before.
  auto again = ours->Attach(ReadSpecOf("b", other.geometry()));
  ASSERT_OK(again.status());
  const auto reads = AllEntries(other, into);
  ASSERT_OK(Fetch(*again, reads));
  EXPECT_TRUE(AllRight(other, reads));
}

TEST_F(VerbsServiceTest, WhatMayNotBeReadIsRefusedByName) {
  const Content content(QwenLike(), 64, 1);
  auto client = Connect();
  auto producer = client->Open(SpecOf("a", content));
  ASSERT_OK(producer.status());
  ASSERT_OK(producer->WriteTokens(LayerIndex(0), 0, 64, content.Keys(0, 0), content.Values(0, 0)));
  ASSERT_OK(producer->CommitWritten());
  ReaderSpec spec = ReadSpecOf("a", content.geometry());
  spec.first_head = 2;
  spec.head_count = 4;
  auto reader = client->Attach(spec);
  ASSERT_OK(reader.status());
  EXPECT_OK(FetchOne(*reader, 0, 0, 2));
  EXPECT_THAT(FetchOne(*reader, 0, 1, 2), Fails(ErrorCode::kNotCommitted));
  EXPECT_THAT(FetchOne(*reader, 4, 0, 2), Fails(ErrorCode::kOutOfRange));
  EXPECT_THAT(FetchOne(*reader, 0, 3, 2), Fails(ErrorCode::kOutOfRange));
  EXPECT_THAT(FetchOne(*reader, 0, 0, 6), Fails(ErrorCode::kForeign));
  ASSERT_OK(reader->Release());
  EXPECT_THAT(FetchOne(*reader, 0, 0, 2), Fails(ErrorCode::kStale));
  // A writer's grant that is gone writes nothing more.
  ASSERT_OK(client->Abort("a", TestIdentity(), "test").status());
  EXPECT_FALSE(
      producer->WriteTokens(LayerIndex(1), 0, 64, content.Keys(1, 0), content.Values(1, 0)).ok());
}

TEST_F(VerbsServiceTest, AKilledDaemonIsLostAndItsSuccessorIsFoundAgain) {
  const Content content(QwenLike(), 64, 1);
  auto client = Connect();
  ASSERT_OK(Put(*client, "a", content));
  auto reader = client->Attach(ReadSpecOf("a", content.geometry()));
  ASSERT_OK(reader.status());
  cluster_->daemon().Kill();
  std::vector<std::byte> into;
  const auto reads = AllEntries(content, into);
  EXPECT_THAT(Fetch(*reader, reads), Fails(ErrorCode::kPeerLost));
  ASSERT_OK(cluster_->daemon().Start());
  ASSERT_OK(Put(*client, "a", content));
  EXPECT_THAT(Fetch(*reader, reads), Fails(ErrorCode::kStale));
  auto again = client->Attach(ReadSpecOf("a", content.geometry()));
  ASSERT_OK(again.status());
  ASSERT_OK(Fetch(*again, reads));
  EXPECT_TRUE(AllRight(content, reads));
}

// Hellos that are none, the largest ones, and connections that nobody has.
TEST_F(VerbsServiceTest, GarbageInTheHelloHarmsNobody) {
  const auto kv =
      v1::KvMemory::NewStub(grpc::CreateChannel(address(), grpc::InsecureChannelCredentials()));
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{64}, size_t{4096}, size_t{4097}}) {
    grpc::ClientContext context;
    v1::ConnectFabricRequest request;
    request.set_fabric("verbs");
    request.set_client_hello(std::string(bytes, '\1'));
    v1::ConnectFabricResponse response;
    EXPECT_FALSE(kv->ConnectFabric(&context, request, &response).ok()) << bytes << " bytes";
  }
  grpc::ClientContext fence, goodbye;
  v1::FenceWriterRequest promise;
  promise.set_fabric("verbs");
  promise.set_connection(77);
  v1::FenceWriterResponse taken;
  EXPECT_TRUE(kv->FenceWriter(&fence, promise, &taken).ok());
  v1::DisconnectFabricRequest request;
  request.set_fabric("verbs");
  request.set_connection(77);
  v1::DisconnectFabricResponse gone;
  EXPECT_TRUE(kv->DisconnectFabric(&goodbye, request, &gone).ok());
  const Content content(QwenLike(), 32, 1);
  auto client = Connect();
  EXPECT_OK(Put(*client, "a", content));
}

// A process that has opened a sequence and holds its writer's grant; see HoldWriter.
SelfProcess WriterProcess(const std::string& address) {
  return SelfProcess({"--hold_writer", address});
}

// Its queue pairs answer nothing any more, which the daemon sees by itself.
TEST_F(VerbsServiceTest, AKilledWriterReturnsItsMemory) {
  const SelfProcess writer = WriterProcess(address());
  ASSERT_TRUE(Eventually([&] { return Capacity().grants_writer() == 1; }, kPatience));
  EXPECT_FALSE(Idle());
  ASSERT_TRUE(writer.Signal(SIGKILL));
  ASSERT_TRUE(Eventually([&] { return Idle(); }, kPatience));
}

// Its device goes on answering, so that only the missing fence gives it away.
TEST_F(VerbsServiceTest, AStoppedWriterIsDisconnectedAndItsMemoryReturns) {
  StartDaemon({"--fabrics=verbs", "--fence_timeout=1s"});
  const SelfProcess writer = WriterProcess(address());
  ASSERT_TRUE(Eventually([&] { return Capacity().grants_writer() == 1; }, kPatience));
  ASSERT_TRUE(writer.Signal(SIGSTOP));
  ASSERT_TRUE(Eventually([&] { return Capacity().quarantined_bytes() > 0; }, kPatience));
  ASSERT_TRUE(Eventually([&] { return Idle(); }, kPatience));
}

}  // namespace

int ChildMain(int argc, char** argv) { return argc == 3 ? HoldWriter(OptionsFor(argv[2])) : 1; }

}  // namespace oasiskv::testing

// The test program is its own writer that gets killed.
int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "--hold_writer") {
    return oasiskv::testing::ChildMain(argc, argv);
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
