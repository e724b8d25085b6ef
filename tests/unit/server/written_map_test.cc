// Pieces of written bytes against one flag a byte.
#include "server/sequence/written_map.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace oasiskv::server {
namespace {

TEST(WrittenMapTest, AgreesWithAFlagPerByte) {
  constexpr uint32_t kBytes = 64;
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    WrittenMap map;
    std::vector<bool> flags(kBytes);
    for (int step = 0; step < 12; ++step) {
      const uint32_t begin = random() % kBytes;
      const uint32_t end = begin + 1 + random() % std::min<uint32_t>(9, kBytes - begin);
      map.Add(1, begin, end);
      std::fill(flags.begin() + begin, flags.begin() + end, true);
      const uint32_t from = random() % kBytes;
      const uint32_t to = from + 1 + random() % (kBytes - from);
      const bool want =
          std::all_of(flags.begin() + from, flags.begin() + to, [](bool f) { return f; });
      ASSERT_EQ(map.Covers(1, from, to), want) << "round " << round << " step " << step;
      ASSERT_FALSE(map.Covers(0, from, to));
      ASSERT_FALSE(map.Covers(2, from, to));
    }
  }
}

// A stranger that writes every other byte must not take the daemon's memory.
TEST(WrittenMapTest, PiecesThatDoNotTouchAreBounded) {
  WrittenMap map;
  for (uint32_t at = 0; at < 100'000; at += 2) map.Add(0, at, at + 1);
  EXPECT_LE(map.bytes(), 4 * WrittenMap::kMostPieces * 8);
  EXPECT_TRUE(map.Covers(0, 0, 1));
  EXPECT_FALSE(map.Covers(0, 99'998, 99'999)) << "it was not noted";
  map.Add(0, 0, 100'000);
  EXPECT_TRUE(map.Covers(0, 0, 100'000));
}

}  // namespace
}  // namespace oasiskv::server
