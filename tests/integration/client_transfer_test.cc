// Readers get what a producer put: layouts, ranges of layers and heads, summaries, top-K lists, large
// batches.
#include <thread>

#include "tests/integration/client_fixture.h"

namespace oasiskv::testing {
namespace {

using ClientTransferTest = ClientTest;
INSTANTIATE_OVER_FABRICS(ClientTransferTest);

// Every entry and summary of the reader's heads, byte for byte.
void ExpectAll(Reader& reader, const Content& content) {
  const Geometry& g = content.geometry();
  const uint32_t first = reader.first_head(), count = reader.head_count();
  const uint64_t n = uint64_t{content.blocks()} * g.layers * count;
  std::vector<std::byte> data(n * g.entry_bytes());
  std::vector<EntryRead> reads;
  for (uint32_t b = 0; b < content.blocks(); ++b) {
    for (uint32_t l = 0; l < g.layers; ++l) {
      for (uint32_t h = 0; h < count; ++h) {
        reads.push_back({BlockIndex(b), LayerIndex(l), HeadIndex(first + h),
                         data.data() + reads.size() * g.entry_bytes()});
      }
    }
  }
  ASSERT_OK(reader.FetchEntries(reads, Soon())->Wait());
  for (size_t i = 0; i < reads.size(); ++i) {
    const auto want =
        content.Entry(reads[i].block.value(), reads[i].layer.value(), reads[i].head.value());
    ASSERT_EQ(std::memcmp(reads[i].into, want.data(), want.size()), 0) << "entry " << i;
  }

  std::vector<std::byte> layers(data.size());
  std::vector<LayerRead> layer_reads;
  for (uint32_t b = 0; b < content.blocks(); ++b) {
    layer_reads.push_back({BlockIndex(b), LayerIndex(0), g.layers,
                           layers.data() + uint64_t{b} * g.layers * count * g.entry_bytes()});
  }
  ASSERT_OK(reader.FetchLayers(layer_reads, Soon())->Wait());
  ASSERT_EQ(layers, data);

  std::vector<std::byte> summaries(n * g.summary_bytes());
  ASSERT_OK(reader.FetchSummaries(BlockIndex(0), content.blocks(), summaries.data(), Soon()));
  uint64_t i = 0;
  for (const EntryRead& r : reads) {
    const auto want = content.Summary(r.block.value(), r.layer.value(), r.head.value());
    ASSERT_EQ(std::memcmp(summaries.data() + i++ * g.summary_bytes(), want.data(), want.size()), 0)
        << "summary " << i - 1;
  }
}

TEST_P(ClientTransferTest, PutCommitAttachFetchRelease) {
  StartCluster();
  auto client = Connect();
  const uint64_t before = Capacity().used_bytes;
  uint32_t seed = 0;
  for (const Geometry& geometry : {QwenLike(), MlaLike()}) {
    // A last block that is filled in part, a whole one, and fewer tokens than one block.
    for (const uint64_t tokens : {150, 64, 5}) {
      SCOPED_TRACE(absl::StrCat(geometry.ToString(), ", ", tokens, " tokens"));
      const std::string name = absl::StrCat("s", seed);
      const Content content(geometry, tokens, seed++);
      ProducerSpec spec = SpecOf(name, content);
      spec.checksums = true;
      ASSERT_OK(Put(*client, spec, content));
      ClientOptions verifying = Options();
      verifying.verify_checksums = true;
      auto reader_side = Connect(verifying);
      ASSERT_OK_AND_ASSIGN(Reader reader, reader_side->Attach(ReadSpecOf(name, geometry)));
      EXPECT_TRUE(reader.sealed());
      EXPECT_EQ(reader.token_count(), tokens);
      EXPECT_EQ(reader.blocks(), content.blocks());
      ExpectAll(reader, content);
      EXPECT_GT(reader_side->Stats().checksums_verified, 0u);
      EXPECT_EQ(reader_side->Stats().checksum_failures, 0u);
      EXPECT_GT(reader_side->Stats().grant_checks, 0u);
      ASSERT_OK(reader.Release());
      EXPECT_THAT(reader.Health(), Fails(ErrorCode::kStale));
      ASSERT_OK_AND_ASSIGN(const uint32_t released,
                           client->ReleaseSequences({name}, TestIdentity()));
      EXPECT_EQ(released, 1u);
    }
  }
  EXPECT_EQ(Capacity().used_bytes, before);
}

// Chunked prefill hands tokens over in pieces that end anywhere in a block.
TEST_P(ClientTransferTest, TokensInPiecesOfAnySize) {
  StartCluster();
  auto client = Connect();
  const Content content(QwenLike(), 133, 7);
  ASSERT_OK_AND_ASSIGN(Producer producer, client->Open(SpecOf("pieces", content)));
  for (uint32_t l = 0; l < content.geometry().layers; ++l) {
    uint64_t token = 0;
    for (const uint32_t piece : {3, 13, 1, 15, 16, 17, 40, 28}) {
      ASSERT_OK(producer.WriteTokens(LayerIndex(l), token, piece, content.Keys(l, token),
                                     content.Values(l, token)));
      token += piece;
    }
    ASSERT_OK(producer.CommitWritten());
  }
  SealSpec seal;
  seal.token_count = content.tokens();
  seal.blob = "draft state";
  ASSERT_OK(producer.Seal(seal));
  EXPECT_THAT(producer.Seal(seal), Fails(ErrorCode::kWrongState));
  ASSERT_OK_AND_ASSIGN(Reader reader, client->Attach(ReadSpecOf("pieces", QwenLike())));
  EXPECT_EQ(reader.blob(), "draft state");
  ExpectAll(reader, content);
}

TEST_P(ClientTransferTest, HalfWrittenIsNotCommitted) {
  StartCluster();
  auto client = Connect();
  const Content content(QwenLike(), 64, 3);
  ASSERT_OK_AND_ASSIGN(Producer producer, client->Open(SpecOf("half", content)));
  ASSERT_OK(producer.WriteTokens(LayerIndex(0), 0, 40, content.Keys(0, 0), content.Values(0, 0)));
  EXPECT_THAT(
      producer.WriteTokens(LayerIndex(0), 48, 1, content.Keys(0, 48), content.Values(0, 48)),
      Fails(ErrorCode::kInvalidArgument));
  EXPECT_THAT(
      producer.WriteTokens(LayerIndex(0), 40, 25, content.Keys(0, 40), content.Values(0, 40)),
      Fails(ErrorCode::kOutOfRange));
  // Block 2 of layer 0 has half of its tokens; layer 1 has none at all.
  EXPECT_THAT(producer.Commit(LayerIndex(0), 1, BlockIndex(0), 3), Fails(ErrorCode::kNotCommitted));
  EXPECT_THAT(producer.Commit(LayerIndex(0), 2, BlockIndex(0), 1), Fails(ErrorCode::kNotCommitted));
  EXPECT_THAT(producer.Commit(LayerIndex(0), 1, BlockIndex(0), 5), Fails(ErrorCode::kOutOfRange));
  ASSERT_OK(producer.Commit(LayerIndex(0), 1, BlockIndex(0), 2));
  SealSpec seal;
  seal.token_count = 40;
  EXPECT_THAT(producer.Seal(seal), Fails(ErrorCode::kNotCommitted));

  ASSERT_OK_AND_ASSIGN(Reader reader, client->Attach(ReadSpecOf("half", QwenLike())));
  EXPECT_FALSE(reader.sealed());
  EXPECT_TRUE(reader.IsCommitted(LayerIndex(0), BlockIndex(1)));
  EXPECT_FALSE(reader.IsCommitted(LayerIndex(0), BlockIndex(2)));
  EXPECT_FALSE(reader.IsCommitted(LayerIndex(1), BlockIndex(0)));
  std::vector<std::byte> into(QwenLike().entry_bytes());
  const EntryRead committed{BlockIndex(1), LayerIndex(0), HeadIndex(2), into.data()};
  ASSERT_OK(reader.FetchEntries({&committed, 1}, Soon())->Wait());
  EXPECT_EQ(into, content.Entry(1, 0, 2));
}

TEST_P(ClientTransferTest, TopKListAsPredictorsMakeThem) {
  StartCluster();
  auto client = Connect();
  const Content content(QwenLike(), 160, 4);
  ASSERT_OK(Put(*client, "topk", content));
  ASSERT_OK_AND_ASSIGN(Reader reader, client->Attach(ReadSpecOf("topk", QwenLike())));
  const uint32_t bytes = QwenLike().entry_bytes();
  const std::vector<int32_t> list = {7, -1, 2, 7, 0, -1, 2, 9};
  const int64_t stride = bytes + 32;
  std::vector<std::byte> into(list.size() * stride, std::byte{0x5A});
  const uint64_t pieces_before = client->Stats().pieces;
  ASSERT_OK(reader.FetchTopK(LayerIndex(1), HeadIndex(3), list, into.data(), stride, Soon()));
  EXPECT_EQ(client->Stats().pieces - pieces_before, 4u) << "a block named twice is fetched once";
  for (size_t i = 0; i < list.size(); ++i) {
    const std::vector<std::byte> found(into.begin() + i * stride,
                                       into.begin() + i * stride + bytes);
    EXPECT_EQ(found, list[i] < 0 ? std::vector<std::byte>(bytes, std::byte{0x5A})
                                 : content.Entry(list[i], 1, 3))
        << i;
  }
  for (const int32_t bad : {10, -2, INT32_MAX, INT32_MIN}) {
    const std::vector<int32_t> with_bad = {1, -1, bad};
    const absl::Status status =
        reader.FetchTopK(LayerIndex(1), HeadIndex(3), with_bad, into.data(), stride, Soon());
    EXPECT_THAT(status, Fails(ErrorCode::kOutOfRange));
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("blocks[2]"));
  }
  const std::vector<int32_t> padding(8, -1);
  EXPECT_OK(reader.FetchTopK(LayerIndex(0), HeadIndex(0), padding, into.data(), stride, Soon()));
}

TEST_P(ClientTransferTest, FirstTopKIsOverCompleteBlocks) {
  StartCluster();
  auto client = Connect();
  Geometry g = QwenLike();
  const Content content(g, 70, 5);  // four whole blocks and a tail
  ASSERT_OK_AND_ASSIGN(Producer producer, client->Open(SpecOf("first", content)));
  ASSERT_OK(WriteAll(producer, content));
  std::vector<float> queries(uint64_t{g.layers} * 16 * g.head_dim);
  for (size_t i = 0; i < queries.size(); ++i) queries[i] = static_cast<float>(i % 7) - 3;
  SealSpec seal;
  seal.token_count = content.tokens();
  seal.first_queries = queries.data();
  seal.query_heads = 16;
  seal.top_k = 6;
  ASSERT_OK(producer.Seal(seal));
  ASSERT_OK_AND_ASSIGN(Reader reader, client->Attach(ReadSpecOf("first", g)));
  ASSERT_EQ(reader.first_topk_k(), 6u);
  ASSERT_EQ(reader.first_topk().size(), uint64_t{g.layers} * g.kv_heads * 6);
  for (size_t list = 0; list < reader.first_topk().size(); list += 6) {
    const auto one = reader.first_topk().subspan(list, 6);
    EXPECT_THAT(std::vector<int32_t>(one.begin(), one.begin() + 4),
                ::testing::UnorderedElementsAre(0, 1, 2, 3));
    EXPECT_EQ(one[4], -1);
    EXPECT_EQ(one[5], -1);
  }
}

TEST_P(ClientTransferTest, ExtendGoesOnWhereTheReservationEnded) {
  StartCluster();
  auto client = Connect();
  const Content content(QwenLike(), 96, 6);
  ProducerSpec spec = SpecOf("extend", content);
  spec.blocks = 2;
  ASSERT_OK_AND_ASSIGN(Producer producer, client->Open(spec));
  EXPECT_THAT(producer.Extend(100000), Fails(ErrorCode::kCapacity));
  EXPECT_EQ(producer.blocks(), 2u);
  ASSERT_OK(producer.Extend(4));
  EXPECT_EQ(producer.blocks(), 6u);
  ASSERT_OK(WriteAll(producer, content));
  SealSpec seal;
  seal.token_count = 96;
  ASSERT_OK(producer.Seal(seal));
  ASSERT_OK_AND_ASSIGN(Reader reader, client->Attach(ReadSpecOf("extend", QwenLike())));
  ExpectAll(reader, content);
}

TEST_P(ClientTransferTest, RangeOfHeads) {
  StartCluster();
  auto client = Connect();
  const Content content(QwenLike(), 80, 8);
  ASSERT_OK(Put(*client, "heads", content));
  ReaderSpec spec = ReadSpecOf("heads", QwenLike());
  spec.first_head = 2;
  spec.head_count = 3;
  ASSERT_OK_AND_ASSIGN(Reader reader, client->Attach(spec));
  EXPECT_EQ(reader.head_count(), 3u);
  ExpectAll(reader, content);
}

TEST_P(ClientTransferTest, HandlesOutliveTheClient) {
  StartCluster();
  const Content content(QwenLike(), 48, 13);
  std::unique_ptr<Reader> reader;
  std::unique_ptr<Producer> producer;
  {
    ClientOptions options = Options();
    options.lease = std::chrono::milliseconds(600);
    auto client = Connect(options);
    ASSERT_OK(Put(*client, "a", content));
    ASSERT_OK_AND_ASSIGN(Reader attached, client->Attach(ReadSpecOf("a", QwenLike())));
    reader = std::make_unique<Reader>(std::move(attached));
    ASSERT_OK_AND_ASSIGN(Producer opened, client->Open(SpecOf("b", content)));
    producer = std::make_unique<Producer>(std::move(opened));
  }
  ExpectAll(*reader, content);
  ASSERT_OK(WriteAll(*producer, content));
  // Leases are still renewed.
  const auto leases_later = Clock::Real().Now() + std::chrono::milliseconds(1500);
  ASSERT_EVENTUALLY(Clock::Real().Now() > leases_later);
  EXPECT_OK(reader->Health());
  SealSpec seal;
  seal.token_count = content.tokens();
  ASSERT_OK(producer->Seal(seal));
  reader.reset();
  producer.reset();
  // The keeper of the last handle released its grants before it ended.
  EXPECT_EQ(Capacity().grants_reader + Capacity().grants_writer, 0u);
}

TEST_P(ClientTransferTest, WaitsForTheSeal) {
  StartCluster();
  auto client = Connect();
  const Content content(QwenLike(), 48, 12);
  ReaderSpec spec = ReadSpecOf("later", QwenLike());
  spec.wait_for_seal = std::chrono::milliseconds(50);
  EXPECT_THAT(client->Attach(spec).status(), Fails(ErrorCode::kNotFound));
  spec.wait_for_seal = std::chrono::seconds(20);
  absl::Status put;
  std::thread writer([&] { put = Put(*client, "later", content); });
  auto reader = client->Attach(spec);
  writer.join();
  ASSERT_OK(put);
  ASSERT_OK(reader.status());
  ExpectAll(*reader, content);
}

}  // namespace
}  // namespace oasiskv::testing
