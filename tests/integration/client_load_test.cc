// Many entries, many threads, many rounds: the bytes stay right and everything comes back.
#include <atomic>
#include <thread>

#include "tests/integration/client_fixture.h"

namespace oasiskv::testing {
namespace {

using ClientLoadTest = ClientTest;
INSTANTIATE_OVER_FABRICS(ClientLoadTest);

// The shape of one transfer of a long request: no message of the control plane and no descriptor
// grows with the entries.
TEST_P(ClientLoadTest, HundredThousandEntries) {
  StartCluster(DaemonMode::kInProcess, {"--pool_bytes=128MiB"});
  auto client = Connect();
  Geometry g;
  g.layers = 10;
  g.kv_heads = 10;
  g.head_dim = 8;
  g.block_tokens = 4;
  g.element_type = ElementType::kBFloat16;
  g.total_kv_heads = 10;
  const Content content(g, 4000, 9);
  ASSERT_OK(Put(*client, "many", content));
  ASSERT_OK_AND_ASSIGN(Reader reader, client->Attach(ReadSpecOf("many", g)));
  std::vector<std::byte> into(uint64_t{100000} * g.entry_bytes());
  std::vector<EntryRead> reads;
  for (uint32_t i = 0; i < 100000; ++i) {
    // A walk that visits every entry once and in which no two neighbours are adjacent in memory.
    const uint32_t entry = static_cast<uint32_t>(uint64_t{i} * 30011 % 100000);
    reads.push_back({BlockIndex(entry / 100), LayerIndex(entry / 10 % 10), HeadIndex(entry % 10),
                     into.data() + uint64_t{i} * g.entry_bytes()});
  }
  ASSERT_OK(reader.FetchEntries(reads, Soon(60))->Wait());
  for (const EntryRead& r : reads) {
    const auto want = content.Entry(r.block.value(), r.layer.value(), r.head.value());
    ASSERT_EQ(std::memcmp(r.into, want.data(), want.size()), 0);
  }
  const ClientStats stats = client->Stats();
  EXPECT_GE(stats.pieces, 100000u);
  EXPECT_LE(stats.request_bytes, 100000u * 32);
}

TEST_P(ClientLoadTest, ManyInFlightFromManyThreads) {
  StartCluster();
  auto client = Connect();
  const Geometry g = QwenLike();
  const Content content(g, 320, 10);
  ASSERT_OK(Put(*client, "busy", content));
  ASSERT_OK_AND_ASSIGN(Reader reader, client->Attach(ReadSpecOf("busy", g)));
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (uint32_t t = 0; t < 16; ++t) {
    threads.emplace_back([&, t] {
      constexpr uint32_t kInFlight = 32, kEntries = 6;
      std::vector<std::byte> into(uint64_t{kInFlight} * kEntries * g.entry_bytes());
      std::vector<std::vector<EntryRead>> reads(kInFlight);
      std::vector<std::unique_ptr<PendingFetch>> pending;
      for (uint32_t f = 0; f < kInFlight; ++f) {
        for (uint32_t e = 0; e < kEntries; ++e) {
          const uint32_t n = t * 977 + f * 31 + e * 7;
          reads[f].push_back({BlockIndex(n % 20), LayerIndex(n % 3), HeadIndex(n % 8),
                              into.data() + (uint64_t{f} * kEntries + e) * g.entry_bytes()});
        }
        pending.push_back(reader.FetchEntries(reads[f], Soon(60)));
      }
      for (uint32_t f = 0; f < kInFlight; ++f) {
        if (!pending[f]->Wait().ok()) ++wrong;
        for (const EntryRead& r : reads[f]) {
          const auto want = content.Entry(r.block.value(), r.layer.value(), r.head.value());
          if (std::memcmp(r.into, want.data(), want.size()) != 0) ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_P(ClientLoadTest, RoundsOfEveryKindGiveAllBack) {
  StartCluster(DaemonMode::kInProcess, {"--pool_bytes=16MiB"});
  auto client = Connect();
  Geometry g = QwenLike();
  g.layers = 1;
  g.kv_heads = g.total_kv_heads = 2;
  const Content content(g, 40, 11);
  const uint64_t before = Capacity().used_bytes;
  std::vector<std::byte> into(content.blocks() * uint64_t{g.entry_bytes()});
  for (int round = 0; round < 1000; ++round) {
    const std::string name = absl::StrCat("round", round);
    if (round % 5 == 0) {  // a producer that is dropped
      ASSERT_OK_AND_ASSIGN(Producer producer, client->Open(SpecOf(name, content)));
      ASSERT_OK(
          producer.WriteTokens(LayerIndex(0), 0, 20, content.Keys(0, 0), content.Values(0, 0)));
      continue;
    }
    ASSERT_OK(Put(*client, name, content));
    {
      ASSERT_OK_AND_ASSIGN(Reader reader, client->Attach(ReadSpecOf(name, g)));
      std::vector<EntryRead> reads;
      for (uint32_t b = 0; b < content.blocks(); ++b) {
        reads.push_back({BlockIndex(b), LayerIndex(0), HeadIndex(round % 2),
                         into.data() + uint64_t{b} * g.entry_bytes()});
      }
      if (round % 5 == 1) reads.back().block = BlockIndex(99);  // an error
      auto fetch = reader.FetchEntries(reads, Soon());
      if (round % 5 == 2) fetch->Cancel();
      if (round % 5 == 3) {
        fetch.reset();
      } else if (round % 5 == 4) {
        ASSERT_OK(fetch->Wait());
        ASSERT_EQ(std::memcmp(into.data(), content.Entry(0, 0, round % 2).data(), g.entry_bytes()),
                  0);
      }
      if (round % 7 == 0) {
        ASSERT_OK_AND_ASSIGN(const uint32_t revoked, client->Abort(name, TestIdentity(), "test"));
        ASSERT_EQ(revoked, 1u);
        continue;
      }
    }
    ASSERT_OK(client->ReleaseSequences({name}, TestIdentity()).status());
  }
  ASSERT_EVENTUALLY(Capacity().used_bytes == before);
  ASSERT_EVENTUALLY(Capacity().grants_reader + Capacity().grants_writer == 0);
}

}  // namespace
}  // namespace oasiskv::testing
