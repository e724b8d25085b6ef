// Registered buffers on fabrics that make no copies: handles that do nothing and forbid nothing.
#include <cstring>

#include "client/source/registered_slabs.h"
#include "tests/integration/client_fixture.h"

namespace oasiskv::testing {
namespace {

class ClientBufferTest : public ClientTest {};
INSTANTIATE_OVER_FABRICS(ClientBufferTest);

TEST_P(ClientBufferTest, AHandleThatDoesNothingIsGivenAndOutlivesItsMakers) {
  StartCluster();
  auto client = Connect();
  const Content content(QwenLike(), 32, 1);
  ASSERT_OK(Put(*client, "a", content));
  std::vector<std::byte> memory(content.geometry().entry_bytes());
  ASSERT_OK_AND_ASSIGN(RegisteredBuffer buffer, client->RegisterBuffer(memory));
  EXPECT_FALSE(buffer.direct());
  RegisteredBuffer of_reader;
  {
    ASSERT_OK_AND_ASSIGN(Reader reader, client->Attach(ReadSpecOf("a", content.geometry())));
    ASSERT_OK_AND_ASSIGN(of_reader, reader.RegisterBuffer(memory));
    const EntryRead read{BlockIndex(1), LayerIndex(2), HeadIndex(3), memory.data()};
    ASSERT_OK(reader.FetchEntries({&read, 1}, Soon())->Wait());
    EXPECT_EQ(memory, content.Entry(1, 2, 3));
    EXPECT_EQ(client->Stats().bytes_direct, 0u);
    EXPECT_EQ(client->Stats().bytes_bounced, 0u);
    client.reset();
  }
  RegisteredBuffer moved = std::move(buffer);
  EXPECT_FALSE(moved.direct());
  EXPECT_FALSE(buffer.direct());  // NOLINT(bugprone-use-after-move): of nothing now
  moved = std::move(of_reader);
  EXPECT_FALSE(moved.direct());
}

TEST_P(ClientBufferTest, NoMemoryIsRefused) {
  StartCluster();
  auto client = Connect();
  std::byte one{};
  EXPECT_THAT(client->RegisterBuffer({}).status(), Fails(ErrorCode::kInvalidArgument));
  EXPECT_THAT(client->RegisterBuffer({&one, size_t{0}}).status(),
              Fails(ErrorCode::kInvalidArgument));
  ASSERT_OK(client->RegisterBuffer({&one, 1}).status());
}

// What a host cache lies in: every place within a registered slab, none handed out twice.
TEST(RegisteredSlabsTest, PlacesLieInRegisteredSlabsAndAreUsedAgain) {
  constexpr uint64_t kPlace = 300 << 10;
  std::vector<std::span<std::byte>> slabs;
  client::RegisteredSlabs memory(kPlace, [&](std::span<std::byte> slab) {
    slabs.push_back(slab);
    return std::vector<RegisteredBuffer>();
  });
  std::vector<std::byte*> places;
  for (int i = 0; i < 40; ++i) {
    places.push_back(memory.Take());
    std::memset(places.back(), i, kPlace);
  }
  EXPECT_LT(slabs.size(), 8u);  // registering is dear: they grow
  uint64_t bytes = 0;
  for (const auto& slab : slabs) bytes += slab.size();
  EXPECT_EQ(memory.slab_bytes(), bytes);
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(places[static_cast<size_t>(i)][kPlace - 1], static_cast<std::byte>(i));
    int holders = 0;
    for (const auto& slab : slabs) {
      const std::byte* const place = places[static_cast<size_t>(i)];
      holders += place >= slab.data() && place + kPlace <= slab.data() + slab.size() ? 1 : 0;
    }
    EXPECT_EQ(holders, 1) << i;
  }
  memory.Give(places[7]);
  EXPECT_EQ(memory.Take(), places[7]);
}

TEST(RegisteredSlabsTest, APlaceLargerThanASlabHasOneOfItsOwn) {
  client::RegisteredSlabs memory(uint64_t{40} << 20, nullptr);
  EXPECT_NE(memory.Take(), nullptr);
  EXPECT_EQ(memory.slab_bytes(), uint64_t{40} << 20);
}

}  // namespace
}  // namespace oasiskv::testing
