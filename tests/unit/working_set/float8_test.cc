// Summaries in E4M3: the conversion against its definition, and what the working set makes of it.
#include "client/selection/float8.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "client/selection/element.h"
#include "client/selection/summary.h"
#include "gmock/gmock.h"
#include "tests/unit/working_set/float8_reference.h"
#include "tests/unit/working_set/working_set_fixture.h"

namespace oasiskv {
namespace {

using ::testing::ElementsAre;

uint32_t Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

TEST(Float8Test, ValuesOfEveryCode) {
  for (uint32_t code = 0; code < 256; ++code) {
    const float value = Float8ToFloat(static_cast<uint8_t>(code));
    const double expected = Float8ByDefinition(code);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << code;
    } else {
      EXPECT_EQ(value, expected) << code;
      EXPECT_EQ(std::signbit(value), code >= 0x80) << code;
    }
  }
  EXPECT_EQ(Float8ToFloat(kFloat8Greatest), 448.0f);
  EXPECT_TRUE(std::isnan(Float8ToFloat(kFloat8Nan)));
}

// By the definition, and outward where 448 suffices.
template <typename Format>
void ExpectRounded(uint32_t bits, float value) {
  for (bool up : {false, true}) {
    const uint32_t code = Format::ToFloat8(bits, up);
    ASSERT_EQ(code, RoundedByDefinition(value, up)) << value << (up ? " up" : " down");
    if (std::isnan(value) || std::fabs(value) > 448) continue;
    const float rounded = Float8ToFloat(static_cast<uint8_t>(code));
    ASSERT_TRUE(up ? rounded >= value : rounded <= value) << value;
  }
}

TEST(Float8Test, EveryFloat16AndBFloat16IsRoundedByTheDefinition) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    ASSERT_NO_FATAL_FAILURE(ExpectRounded<Float16Format>(bits, Float16ToFloat(half)));
    ASSERT_NO_FATAL_FAILURE(ExpectRounded<BFloat16Format>(bits, BFloat16ToFloat(half)));
  }
}

TEST(Float8Test, Float32IsRoundedByTheDefinition) {
  const auto expect = [](uint32_t bits) { ExpectRounded<Float32Format>(bits, FromBits(bits)); };
  // Every number that is exact, what lies beside it, and what lies between two.
  for (uint32_t code = 0; code < 256; ++code) {
    const uint32_t bits = Bits(Float8ToFloat(static_cast<uint8_t>(code)));
    for (uint32_t near : {bits - 1, bits, bits + 1, bits + 0x80000, bits + 0x7ffff}) {
      ASSERT_NO_FATAL_FAILURE(expect(near));
    }
  }
  for (uint32_t bits : {0x7f800000u, 0xff800000u, 0x7f800001u, 0xffc00000u, 0x7f7fffffu, 1u,
                        0x80000001u, 0x007fffffu, 0x00800000u, 0xff7fffffu, 0x80000000u}) {
    ASSERT_NO_FATAL_FAILURE(expect(bits));
  }
  std::mt19937 rng(1);
  for (int i = 0; i < 2'000'000; ++i) {
    const auto bits = static_cast<uint32_t>(rng());
    ASSERT_NO_FATAL_FAILURE(expect(bits));
    // Most of the above lie far out; these lie where E4M3 has its numbers.
    const uint32_t field = 110 + bits / 7 % 30;
    ASSERT_NO_FATAL_FAILURE(expect((bits & 0x807fffff) | field << 23));
  }
}

template <typename Format, typename Number>
void ExpectSummaries(ElementType type) {
  std::mt19937 rng(2);
  for (uint32_t dim = 1; dim < 700; dim += dim < 40 ? 1 : 37) {
    std::vector<Number> summary(2 * dim);  // a sanitizer sees one number too many
    for (Number& number : summary) number = static_cast<Number>(rng());
    std::vector<std::byte> codes(2 * dim);
    auto* const bytes = reinterpret_cast<std::byte*>(summary.data());
    SummaryToFloat8(type, dim, bytes, codes.data());
    for (uint32_t i = 0; i < 2 * dim; ++i) {
      ASSERT_EQ(static_cast<uint32_t>(codes[i]), Format::ToFloat8(summary[i], i >= dim)) << i;
    }
    RoundSummaryToFloat8(type, dim, bytes);
    for (uint32_t i = 0; i < 2 * dim; ++i) {
      const float rounded = LoadElement(type, bytes, i);
      const float code = Float8ToFloat(static_cast<uint8_t>(codes[i]));
      if (std::isnan(code)) {
        ASSERT_TRUE(std::isnan(rounded)) << i;
      } else {
        ASSERT_EQ(Bits(rounded), Bits(code)) << i;
      }
    }
  }
}

TEST(Float8Test, SummariesOfAnyBitsAndLength) {
  ExpectSummaries<Float16Format, uint16_t>(ElementType::kFloat16);
  ExpectSummaries<BFloat16Format, uint16_t>(ElementType::kBFloat16);
  ExpectSummaries<Float32Format, uint32_t>(ElementType::kFloat32);
}

// Whose summaries are what a test says: minimum and maximum of dimension 0 are the same number, and
// 0 elsewhere.
class HandSource : public FakeSource {
 public:
  HandSource(const Geometry& geometry, std::vector<float> keys)
      : FakeSource(geometry, keys.size() * geometry.block_tokens, 1), keys_(std::move(keys)) {}

  absl::Status FetchSummaries(std::byte* into, TimePoint) override {
    const Geometry& g = geometry();
    for (float key : keys_) {
      for (uint32_t half = 0; half < 2 * g.layers; ++half, into += g.key_bytes()) {
        std::memset(into, 0, g.key_bytes());
        kv().Store(key, into);
      }
    }
    return absl::OkStatus();
  }

 private:
  const std::vector<float> keys_;
};

class Float8WorkingSetTest : public WorkingSetFixture {
 protected:
  Float8WorkingSetTest() {
    o_.geometry.head_dim = 16;
    o_.query_heads = 1;
    o_.resident_blocks = 3;
  }
  std::vector<int32_t> Ranked(const std::vector<float>& keys, float query) {
    Make();
    const RequestSlot slot = Admit(std::make_shared<HandSource>(o_.geometry, keys));
    std::vector<float> queries(o_.geometry.head_dim, 0.0f);
    queries[0] = query;
    EXPECT_TRUE(ws_->Submit(LayerIndex(0), {&slot, 1}, queries.data()).ok());
    EXPECT_TRUE(Done({slot}).ok());
    EXPECT_TRUE(Wait({slot}).ok());
    std::vector<int32_t> map = Map(slot);
    std::sort(map.begin(), map.end());
    return map;
  }
};

// Between 1 and 2 E4M3 has steps of 1/8, between 256 and 448 of 32.
TEST_F(Float8WorkingSetTest, RoundingUpMakesTiesThatTheLowerBlockWins) {
  const std::vector<float> keys = {1.9, 1.0, 1.91, 1.0, 1.95, 2.0, 1.0, 1.0};
  EXPECT_THAT(Ranked(keys, 1), ElementsAre(2, 4, 5));
  o_.summaries = SummaryType::kFloat8;
  EXPECT_THAT(Ranked(keys, 1), ElementsAre(0, 2, 4)) << "maxima up: four are 2";
}

TEST_F(Float8WorkingSetTest, MinimaAreRoundedDown) {
  const std::vector<float> keys = {1.1, 5, 1.05, 5, 1.01, 1.0, 5, 5};
  EXPECT_THAT(Ranked(keys, -1), ElementsAre(2, 4, 5));
  o_.summaries = SummaryType::kFloat8;
  EXPECT_THAT(Ranked(keys, -1), ElementsAre(0, 2, 4)) << "minima down: four are 1";
}

TEST_F(Float8WorkingSetTest, Beyond448AllIsOne) {
  const std::vector<float> keys = {450, 1, 1000, 1, 1e30, 500, 447, 1};
  o_.geometry.element_type = ElementType::kBFloat16;
  EXPECT_THAT(Ranked(keys, 1), ElementsAre(2, 4, 5));
  o_.summaries = SummaryType::kFloat8;
  EXPECT_THAT(Ranked(keys, 1), ElementsAre(0, 2, 4));
}

// The local block's summary is rounded where it is made, and handed back as it was: FakeSource
// checks what is written back.
TEST_F(Float8WorkingSetTest, ACompletedBlockIsWrittenBackUnrounded) {
  o_.summaries = SummaryType::kFloat8;
  Make();
  constexpr uint32_t kGrain = 32;
  const auto source = std::make_shared<FakeSource>(o_.geometry, 21, 3, kGrain);
  const auto exact = source->kv().Summary(10, 0, 0);
  auto rounded = exact;
  RoundSummaryToFloat8(o_.geometry.element_type, o_.geometry.head_dim, rounded.data());
  ASSERT_NE(exact, rounded) << "the case shows nothing";
  const RequestSlot slot = Admit(source);
  ASSERT_TRUE(Append(slot).ok());
  ASSERT_TRUE(Step(slot, {0, 1}).ok());
  EXPECT_THAT(source->written(), ElementsAre(std::make_tuple(10u, 0u)));
  EXPECT_EQ(source->wrong(), "");
}

TEST_F(Float8WorkingSetTest, AHeadDimThatIsNoMultipleOf16IsRefused) {
  o_.summaries = SummaryType::kFloat8;
  for (uint32_t dim : {8u, 17u, 24u}) {
    o_.geometry.head_dim = dim;
    const absl::Status status = WorkingSet::Create(o_).status();
    EXPECT_EQ(ErrorCodeOf(status), ErrorCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("summaries is kFloat8"));
    EXPECT_THAT(std::string(status.message()),
                ::testing::HasSubstr("head_dim " + std::to_string(dim)));
  }
  o_.summaries = SummaryType::kAsKeys;
  EXPECT_TRUE(WorkingSet::Create(o_).ok());
}

}  // namespace
}  // namespace oasiskv
