// Shards joined into the heads of one decode rank, and the host memory that keeps what was fetched.
#include <thread>

#include "oasiskv/sequence_source.h"
#include "tests/integration/client_fixture.h"

namespace oasiskv::testing {
namespace {

using ClientSourceTest = ClientTest;
INSTANTIATE_OVER_FABRICS(ClientSourceTest);

// A shard of `whole`: its heads [first, first + count). Content depends on the model's head alone,
// so a shard's is a part of the whole's.
Geometry Shard(Geometry whole, uint32_t first, uint32_t count) {
  whole.first_head = first;
  whole.kv_heads = count;
  return whole;
}

std::shared_ptr<EntrySource> Join(std::vector<SourcePart> parts, HostCachePolicy policy,
                                  uint64_t bytes = uint64_t{1} << 30) {
  SequenceSourceOptions options;
  options.host_cache = policy;
  options.host_cache_bytes = bytes;
  auto source = MakeSequenceSource(std::move(parts), options);
  EXPECT_TRUE(source.ok()) << source.status();
  return source.ok() ? *source : nullptr;
}

class Fetched {
 public:
  explicit Fetched(const Content& content) : content_(content) {}
  void Add(uint32_t block, uint32_t layer, uint32_t head) {
    reads_.push_back({BlockIndex(block), LayerIndex(layer), HeadIndex(head), nullptr});
  }
  void AddAll() {
    for (uint32_t b = 0; b < content_.blocks(); ++b) {
      for (uint32_t l = 0; l < content_.geometry().layers; ++l) {
        for (uint32_t h = 0; h < content_.geometry().kv_heads; ++h) Add(b, l, h);
      }
    }
  }
  std::span<const EntryRead> Reads() {
    const uint32_t bytes = content_.geometry().entry_bytes();
    into_.assign(reads_.size() * bytes, std::byte{0x5A});
    for (size_t i = 0; i < reads_.size(); ++i) reads_[i].into = into_.data() + i * bytes;
    return reads_;
  }
  bool Right() const {
    for (const EntryRead& r : reads_) {
      const auto want = content_.Entry(r.block.value(), r.layer.value(), r.head.value());
      if (std::memcmp(r.into, want.data(), want.size()) != 0) return false;
    }
    return true;
  }

 private:
  const Content& content_;
  std::vector<EntryRead> reads_;
  std::vector<std::byte> into_;
};

void ExpectSummaries(EntrySource& source, const Content& content) {
  const Geometry& g = source.geometry();
  std::vector<std::byte> summaries(uint64_t{content.blocks()} * g.layers * g.kv_heads *
                                   g.summary_bytes());
  ASSERT_OK(source.FetchSummaries(summaries.data(), Soon()));
  const std::byte* at = summaries.data();
  for (uint32_t b = 0; b < content.blocks(); ++b) {
    for (uint32_t l = 0; l < g.layers; ++l) {
      for (uint32_t h = 0; h < g.kv_heads; ++h, at += g.summary_bytes()) {
        const auto want = content.Summary(b, l, h);
        ASSERT_EQ(std::memcmp(at, want.data(), want.size()), 0) << b << " " << l << " " << h;
      }
    }
  }
}

SourcePart PartOf(Client& client, const ReaderSpec& spec) {
  auto reader = client.Attach(spec);
  EXPECT_TRUE(reader.ok()) << reader.status();
  return {reader.ok() ? std::make_shared<Reader>(*std::move(reader)) : nullptr};
}

absl::Status PutWithTopK(Client& client, const std::string& name, const Content& content,
                         uint32_t k) {
  auto producer = client.Open(SpecOf(name, content));
  if (!producer.ok()) return producer.status();
  if (absl::Status s = WriteAll(*producer, content); !s.ok()) return s;
  const Geometry& g = content.geometry();
  std::vector<float> queries;
  for (uint32_t l = 0; l < g.layers; ++l) {
    for (uint32_t h = 0; h < g.kv_heads; ++h) {
      for (uint32_t d = 0; d < g.head_dim; ++d) {
        queries.push_back(static_cast<float>((l * 31 + (g.first_head + h) * 17 + d * 7) % 11) - 5);
      }
    }
  }
  SealSpec seal;
  seal.token_count = content.tokens();
  seal.first_queries = queries.data();
  seal.query_heads = g.kv_heads;
  seal.top_k = k;
  return producer->Seal(seal);
}

TEST_P(ClientSourceTest, TwoPrefillShardsOneDecodeRank) {
  StartCluster();
  auto client = Connect();
  const Geometry g = QwenLike();
  const Content whole(g, 150, 1), low(Shard(g, 0, 4), 150, 1), high(Shard(g, 4, 4), 150, 1);
  ASSERT_OK(PutWithTopK(*client, "whole", whole, 6));
  ASSERT_OK(PutWithTopK(*client, "low", low, 6));
  ASSERT_OK(PutWithTopK(*client, "high", high, 8));
  auto source = Join({PartOf(*client, ReadSpecOf("low", low.geometry())),
                      PartOf(*client, ReadSpecOf("high", high.geometry()))},
                     HostCachePolicy::kAuto);
  EXPECT_EQ(source->geometry(), g);
  EXPECT_EQ(source->token_count(), 150u);
  EXPECT_EQ(source->KeepsFetched(), GetParam() == "ucx");
  Fetched all(whole);
  all.AddAll();
  ASSERT_OK(source->Fetch(all.Reads(), Soon())->Wait());
  EXPECT_TRUE(all.Right());
  ExpectSummaries(*source, whole);
  // The joined list is the whole shard's own.
  ASSERT_OK_AND_ASSIGN(Reader reference, client->Attach(ReadSpecOf("whole", g)));
  uint32_t k = 0;
  const std::vector<int32_t> topk = source->FirstTopK(&k);
  EXPECT_EQ(k, 6u);
  EXPECT_TRUE(std::equal(topk.begin(), topk.end(), reference.first_topk().begin(),
                         reference.first_topk().end()));
}

TEST_P(ClientSourceTest, OnePrefillShardTwoDecodeRanks) {
  StartCluster();
  auto client = Connect();
  const Geometry g = QwenLike();
  const Content whole(g, 100, 1);
  ASSERT_OK(Put(*client, "whole", whole));
  for (const uint32_t first : {0u, 4u}) {
    ReaderSpec spec = ReadSpecOf("whole", g);
    spec.first_head = first;
    spec.head_count = 4;
    auto source = Join({PartOf(*client, spec)}, HostCachePolicy::kAlways);
    const Content half(Shard(g, first, 4), 100, 1);
    EXPECT_EQ(source->geometry(), half.geometry());
    Fetched all(half);
    all.AddAll();
    ASSERT_OK(source->Fetch(all.Reads(), Soon())->Wait());
    EXPECT_TRUE(all.Right());
    ExpectSummaries(*source, half);
  }
}

TEST_P(ClientSourceTest, PartsThatDoNotFitAreRefused) {
  StartCluster();
  auto client = Connect();
  const Geometry g = QwenLike();
  const Content low(Shard(g, 0, 4), 64, 1), high(Shard(g, 4, 4), 64, 1);
  const Content shorter(Shard(g, 4, 4), 48, 1);
  ASSERT_OK(Put(*client, "low", low));
  ASSERT_OK(Put(*client, "high", high));
  ASSERT_OK(Put(*client, "shorter", shorter));
  const SourcePart a = PartOf(*client, ReadSpecOf("low", low.geometry()));
  const SourcePart b = PartOf(*client, ReadSpecOf("high", high.geometry()));
  const SourcePart c = PartOf(*client, ReadSpecOf("shorter", shorter.geometry()));
  EXPECT_THAT(MakeSequenceSource({}, {}).status(), Fails(ErrorCode::kInvalidArgument));
  EXPECT_THAT(MakeSequenceSource({a, {}}, {}).status(), Fails(ErrorCode::kInvalidArgument));
  EXPECT_THAT(MakeSequenceSource({b, a}, {}).status(), Fails(ErrorCode::kInvalidArgument));
  EXPECT_THAT(MakeSequenceSource({a, a}, {}).status(), Fails(ErrorCode::kInvalidArgument));
  const absl::Status tokens = MakeSequenceSource({a, c}, {}).status();
  EXPECT_THAT(tokens, Fails(ErrorCode::kInvalidArgument));
  EXPECT_THAT(std::string(tokens.message()), ::testing::HasSubstr("part 1"));
  ASSERT_OK_AND_ASSIGN(Producer open, client->Open(SpecOf("open", high)));
  const SourcePart d = PartOf(*client, ReadSpecOf("open", high.geometry()));
  EXPECT_THAT(MakeSequenceSource({a, d}, {}).status(), Fails(ErrorCode::kNotSealed));
}

TEST_P(ClientSourceTest, NothingCrossesTwice) {
  StartCluster();
  auto client = Connect();
  for (const Geometry& g : {QwenLike(), MlaLike()}) {
    const Content content(g, 160, 1);
    const std::string name = g.ToString();
    ASSERT_OK(Put(*client, name, content));
    auto source = Join({PartOf(*client, ReadSpecOf(name, g))}, HostCachePolicy::kAlways);
    // Many threads want the same entries at once, each twice in one batch.
    std::vector<std::thread> threads;
    threads.reserve(8);
    std::atomic<int> wrong{0};
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([&] {
        Fetched all(content);
        all.AddAll();
        all.AddAll();
        if (!source->Fetch(all.Reads(), Soon())->Wait().ok() || !all.Right()) ++wrong;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
    const uint64_t entries = uint64_t{content.blocks()} * g.layers * g.kv_heads;
    EXPECT_EQ(source->Stats().remote_entries, entries);
    EXPECT_EQ(source->Stats().host_bytes, entries * g.entry_bytes());
    const uint64_t hits = source->Stats().host_hits;
    Fetched again(content);
    again.AddAll();
    ASSERT_OK(source->Fetch(again.Reads(), Soon())->Wait());
    EXPECT_TRUE(again.Right());
    EXPECT_EQ(source->Stats().remote_entries, entries);
    EXPECT_EQ(source->Stats().host_hits, hits + entries);
  }
}

// Fetches share a batch in flight: any of them may be waited for first, cancelled, or be the only one
// left.
TEST_P(ClientSourceTest, SharedFetchBelongsToNobody) {
  StartCluster();
  auto client = Connect();
  const Geometry g = QwenLike();
  const Content content(g, 160, 1);
  ASSERT_OK(Put(*client, "a", content));
  auto source = Join({PartOf(*client, ReadSpecOf("a", g))}, HostCachePolicy::kAlways);
  Fetched one(content), two(content), three(content);
  for (uint32_t b = 0; b < 4; ++b) one.Add(b, 0, 0), two.Add(b, 0, 0), three.Add(b, 0, 0);
  auto first = source->Fetch(one.Reads(), Soon());
  auto second = source->Fetch(two.Reads(), Soon());
  ASSERT_OK(second->Wait());
  EXPECT_TRUE(two.Right());
  ASSERT_OK(first->Wait());
  EXPECT_TRUE(one.Right());

  Fetched four(content), five(content);
  for (uint32_t b = 4; b < 8; ++b) four.Add(b, 1, 1), five.Add(b, 1, 1);
  first = source->Fetch(four.Reads(), Soon());
  second = source->Fetch(five.Reads(), Soon());
  first->Cancel();
  EXPECT_THAT(first->Wait(), Fails(ErrorCode::kCancelled));
  first.reset();
  ASSERT_OK(second->Wait());
  EXPECT_TRUE(five.Right());

  // Cancelled by all: fetched again.
  Fetched six(content), seven(content);
  for (uint32_t b = 0; b < 8; ++b) six.Add(b, 2, 2), seven.Add(b, 2, 2);
  source->Fetch(six.Reads(), Soon()).reset();
  ASSERT_OK(source->Fetch(seven.Reads(), Soon())->Wait());
  EXPECT_TRUE(seven.Right());
}

TEST_P(ClientSourceTest, BeyondTheByteLimitNothingIsKept) {
  StartCluster();
  auto client = Connect();
  const Geometry g = QwenLike();
  const Content content(g, 160, 1);
  ASSERT_OK(Put(*client, "a", content));
  const uint64_t limit = 3 * uint64_t{g.layer_entries_bytes()} + 100;
  auto source = Join({PartOf(*client, ReadSpecOf("a", g))}, HostCachePolicy::kAlways, limit);
  for (int round = 0; round < 2; ++round) {
    Fetched all(content);
    all.AddAll();
    ASSERT_OK(source->Fetch(all.Reads(), Soon())->Wait());
    EXPECT_TRUE(all.Right());
  }
  EXPECT_EQ(source->Stats().host_bytes, 3 * uint64_t{g.layer_entries_bytes()});
  EXPECT_EQ(source->Stats().host_hits, 3u * g.kv_heads);
}

TEST_P(ClientSourceTest, DecodedBlocksAreWrittenBack) {
  StartCluster();
  auto client = Connect();
  const Geometry g = QwenLike();
  const Content prefill(g, 70, 1);  // the last block holds 6 tokens
  const Content decoded(g, 96, 2);  // what decoding makes of blocks 4 and 5
  ASSERT_OK(Put(*client, "a", prefill));
  for (const HostCachePolicy policy : {HostCachePolicy::kAlways, HostCachePolicy::kNever}) {
    auto source = Join({PartOf(*client, ReadSpecOf("a", g))}, policy);
    Fetched before(prefill);
    before.Add(4, 1, 3);
    ASSERT_OK(source->Fetch(before.Reads(), Soon())->Wait());
    EXPECT_TRUE(before.Right());
    Fetched missing(decoded);
    missing.Add(5, 1, 3);
    EXPECT_THAT(source->Fetch(missing.Reads(), Soon())->Wait(), Fails(ErrorCode::kOutOfRange));
    std::vector<std::byte> summaries(g.layer_summaries_bytes());
    for (const uint32_t block : {4u, 5u}) {
      std::vector<std::byte> entries;
      for (uint32_t h = 0; h < g.kv_heads; ++h) {
        const auto entry = decoded.Entry(block, 1, h);
        entries.insert(entries.end(), entry.begin(), entry.end());
      }
      ASSERT_OK(source->WriteBack(BlockIndex(block), LayerIndex(1), entries, summaries));
      EXPECT_THAT(source->WriteBack(BlockIndex(3), LayerIndex(1), entries, summaries),
                  Fails(ErrorCode::kInvalidArgument));
      EXPECT_THAT(source->WriteBack(BlockIndex(block), LayerIndex(3), entries, summaries),
                  Fails(ErrorCode::kOutOfRange));
      entries.pop_back();
      EXPECT_THAT(source->WriteBack(BlockIndex(block), LayerIndex(1), entries, summaries),
                  Fails(ErrorCode::kInvalidArgument));
    }
    const uint64_t remote = source->Stats().remote_entries;
    Fetched after(decoded);
    after.Add(4, 1, 3);
    after.Add(5, 1, 0);
    ASSERT_OK(source->Fetch(after.Reads(), Soon())->Wait());
    EXPECT_TRUE(after.Right());
    EXPECT_EQ(source->Stats().remote_entries, remote);
    EXPECT_EQ(source->Stats().written_back, 2u * g.kv_heads);
  }
}

TEST_P(ClientSourceTest, OnThisHostEntriesCanBeReadInPlace) {
  StartCluster();
  auto client = Connect();
  const Geometry g = QwenLike();
  const Content low(Shard(g, 0, 4), 64, 1), whole(g, 64, 1);
  ASSERT_OK(Put(*client, "low", low));
  ASSERT_OK(Put(*client, "whole", whole));
  ReaderSpec upper = ReadSpecOf("whole", g);  // heads 4 to 7 of a shard of 8
  upper.first_head = 4;
  upper.head_count = 4;
  auto source = Join({PartOf(*client, ReadSpecOf("low", low.geometry())), PartOf(*client, upper)},
                     HostCachePolicy::kNever);
  ASSERT_OK_AND_ASSIGN(std::vector<LocalPart> parts, source->LocalEntries());
  if (GetParam() != "shm") {
    EXPECT_TRUE(parts.empty());
    return;
  }
  ASSERT_EQ(parts.size(), 2u);
  for (const LocalPart& part : parts) {
    ASSERT_EQ(part.memory.frames.size(), whole.blocks());
    EXPECT_EQ(*part.memory.grant_word, part.memory.epoch);
    for (uint32_t b = 0; b < whole.blocks(); ++b) {
      for (uint32_t l = 0; l < g.layers; ++l) {
        for (uint32_t h = 0; h < part.head_count; ++h) {
          const std::byte* at = part.memory.frames[b] + part.entry_offset + l * part.layer_stride +
                                h * g.entry_bytes();
          const auto want = whole.Entry(b, l, part.first_head + h);
          ASSERT_EQ(std::memcmp(at, want.data(), want.size()), 0) << b << " " << l << " " << h;
          EXPECT_TRUE(std::any_of(part.memory.mappings.begin(), part.memory.mappings.end(),
                                  [&](std::span<const std::byte> mapping) {
                                    return at >= mapping.data() &&
                                           at + want.size() <= mapping.data() + mapping.size();
                                  }));
        }
      }
    }
  }
  // The word shows the revocation, and what is held stays mapped.
  ASSERT_OK(Connect()->Abort("low", TestIdentity(), "test").status());
  EXPECT_NE(*parts[0].memory.grant_word, parts[0].memory.epoch);
  EXPECT_THAT(source->LocalEntries().status(), Fails(ErrorCode::kStale));
  source.reset();
  client.reset();
  EXPECT_NE(*parts[0].memory.grant_word, parts[0].memory.epoch);
}

TEST_P(ClientSourceTest, LossOfOnePartFailsTheBatch) {
  StartCluster();
  auto client = Connect();
  const Geometry g = QwenLike();
  const Content whole(g, 64, 1), low(Shard(g, 0, 4), 64, 1), high(Shard(g, 4, 4), 64, 1);
  ASSERT_OK(Put(*client, "low", low));
  ASSERT_OK(Put(*client, "high", high));
  for (const HostCachePolicy policy : {HostCachePolicy::kAlways, HostCachePolicy::kNever}) {
    auto source = Join({PartOf(*client, ReadSpecOf("low", low.geometry())),
                        PartOf(*client, ReadSpecOf("high", high.geometry()))},
                       policy);
    ASSERT_OK(Connect()->Abort("high", TestIdentity(), "test").status());
    Fetched all(whole);
    all.AddAll();
    EXPECT_THAT(source->Fetch(all.Reads(), Soon())->Wait(), Fails(ErrorCode::kStale));
    ASSERT_OK(Put(*client, "high", high));
  }
}

}  // namespace
}  // namespace oasiskv::testing
