#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "client/selection/element.h"
#include "client/selection/score.h"
#include "client/selection/summary.h"
#include "gtest/gtest.h"
#include "tests/support/narrow.h"

namespace oasiskv {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

uint32_t Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

TEST(ElementTest, Float16ValuesOfEveryClass) {
  EXPECT_EQ(Float16ToFloat(0x3c00), 1.0f);
  EXPECT_EQ(Float16ToFloat(0xc500), -5.0f);
  EXPECT_EQ(Float16ToFloat(0x7bff), 65504.0f);
  EXPECT_EQ(Float16ToFloat(0x0001), 0x1p-24f);
  EXPECT_EQ(Float16ToFloat(0x83ff), -1023 * 0x1p-24f);
  EXPECT_EQ(Float16ToFloat(0x0400), 0x1p-14f);
  EXPECT_EQ(Bits(Float16ToFloat(0x8000)), 0x80000000u);
  EXPECT_EQ(Float16ToFloat(0x7c00), kInf);
  EXPECT_EQ(Float16ToFloat(0xfc00), -kInf);
  EXPECT_TRUE(std::isnan(Float16ToFloat(0x7e01)));
  EXPECT_EQ(BFloat16ToFloat(0x3f80), 1.0f);
  EXPECT_EQ(BFloat16ToFloat(0xc0a0), -5.0f);
}

// Random bit patterns make every kind of number, subnormal, infinity and NaN.
std::vector<std::byte> RandomElements(ElementType type, size_t count, std::mt19937& rng,
                                      bool any_bits) {
  std::vector<std::byte> out(count * ElementBytes(type));
  for (size_t i = 0; i < count; ++i) {
    if (any_bits) {
      const uint32_t bits = rng();
      std::memcpy(&out[i * ElementBytes(type)], &bits, ElementBytes(type));
      continue;
    }
    const float value = std::uniform_real_distribution<float>(-3, 3)(rng);
    if (type == ElementType::kFloat32) {
      std::memcpy(&out[i * 4], &value, 4);
    } else {
      const uint16_t half = NarrowBits(type, value);
      std::memcpy(&out[i * 2], &half, 2);
    }
  }
  return out;
}

// Exchanges minima and maxima where they stand the wrong way round.
void Order(ElementType type, uint32_t dim, std::vector<std::byte>& summaries) {
  const uint32_t bytes = ElementBytes(type);
  for (size_t at = 0; at < summaries.size(); at += size_t{2} * dim * bytes) {
    for (uint32_t d = 0; d < dim; ++d) {
      std::byte* const low = &summaries[at + d * bytes];
      std::byte* const high = low + dim * bytes;
      if (LoadElement(type, low, 0) > LoadElement(type, high, 0)) {
        std::swap_ranges(low, low + bytes, high);
      }
    }
  }
}

class ScoreTest : public testing::TestWithParam<ElementType> {};

constexpr std::array kEveryCombine = {GroupCombine::kMax, GroupCombine::kMean, GroupCombine::kSum,
                                      GroupCombine::kNormalizedMax};

// One head's score of one block by the formula of selection.h.
double HeadScore(const ScoreInput& in, uint32_t block, uint32_t head) {
  const std::byte* summary = in.summaries + int64_t{block} * in.block_stride;
  double greatest = 0, least = 0;
  for (uint32_t d = 0; d < in.head_dim; ++d) {
    const double q = in.queries[head * in.head_dim + d];
    const double low = q * LoadElement(in.element_type, summary, d);
    const double high = q * LoadElement(in.element_type, summary, in.head_dim + d);
    greatest += std::max(low, high);
    least += std::min(low, high);
  }
  return (1 + in.bound_weight) / 2 * greatest + (1 - in.bound_weight) / 2 * least;
}

double BlockScore(const ScoreInput& in, uint32_t block) {
  double score = 0;
  for (uint32_t h = 0; h < in.group; ++h) {
    double one = HeadScore(in, block, h);
    if (in.combine == GroupCombine::kNormalizedMax) {
      double best = one;
      for (uint32_t b = 0; b < in.blocks; ++b) best = std::max(best, HeadScore(in, b, h));
      one -= best;
    }
    const bool adds = in.combine == GroupCombine::kMean || in.combine == GroupCombine::kSum;
    score = h == 0 ? one : adds ? score + one : std::max(score, one);
  }
  return in.combine == GroupCombine::kMean ? score / in.group : score;
}

std::vector<float> Scores(const ScoreInput& in) {
  std::vector<float> scores(in.blocks), scratch;
  ScoreBlocks(in, scores.data(), scratch);
  return scores;
}

TEST_P(ScoreTest, FollowsTheFormula) {
  std::mt19937 rng(1);
  const ElementType type = GetParam();
  for (uint32_t dim : {1u, 7u, 16u, 64u, 100u, 128u}) {
    for (GroupCombine combine : kEveryCombine) {
      for (double weight : {1.0, 0.7, 0.5, 0.0}) {
        const uint32_t group = 1 + rng() % 9, blocks = 5;
        auto summaries = RandomElements(type, blocks * 2 * dim, rng, false);
        Order(type, dim, summaries);
        std::vector<float> queries(group * dim);
        for (float& q : queries) q = std::uniform_real_distribution<float>(-2, 2)(rng);
        const ScoreInput in{summaries.data(),
                            int64_t{2} * dim * ElementBytes(type),
                            type,
                            dim,
                            blocks,
                            queries.data(),
                            group,
                            combine,
                            weight};
        const auto scores = Scores(in);
        for (uint32_t b = 0; b < blocks; ++b) {
          EXPECT_NEAR(scores[b], BlockScore(in, b), 1e-3)
              << "dim " << dim << " group " << group << " weight " << weight;
        }
      }
    }
  }
}

// The published bound, its additions in the documented order: a weight of 1 changes no bit of it,
// of infinities neither.
TEST_P(ScoreTest, AWeightOfOneIsThePublishedBoundBitForBit) {
  std::mt19937 rng(4);
  const ElementType type = GetParam();
  for (int round = 0; round < 300; ++round) {
    const uint32_t dim = 1 + rng() % 150;
    const auto summaries = RandomElements(type, 2 * dim, rng, round % 2 == 0);
    std::vector<float> query(dim);
    for (float& q : query) q = std::normal_distribution<float>(0, 2)(rng);
    float lanes[16] = {};
    for (uint32_t d = 0; d < dim; ++d) {
      const float bound = LoadElement(type, summaries.data(), std::signbit(query[d]) ? d : dim + d);
      lanes[d % 16] = std::fma(query[d], bound, lanes[d % 16]);
    }
    for (uint32_t width = 8; width > 0; width /= 2) {
      for (uint32_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    }
    const auto score = Scores({summaries.data(), 0, type, dim, 1, query.data()})[0];
    if (std::isnan(lanes[0])) {
      EXPECT_TRUE(std::isnan(score));
    } else {
      ASSERT_EQ(Bits(score), Bits(lanes[0]));
    }
  }
}

TEST_P(ScoreTest, EveryKernelGivesTheSameBits) {
  if (!ScoreKernelSupported(ScoreKernel::kAvx2)) GTEST_SKIP() << "needs AVX2, FMA and F16C";
  std::mt19937 rng(2);
  const ElementType type = GetParam();
  std::vector<float> scratch;
  for (int round = 0; round < 600; ++round) {
    const uint32_t dim = 1 + rng() % 150, group = 1 + rng() % 9, blocks = 1 + rng() % 6;
    const bool any_bits = round % 2 == 0;
    const uint32_t gap = rng() % 3;  // odd strides: nothing may lean on alignment
    const int64_t stride = int64_t{2} * dim * ElementBytes(type) + gap;
    auto summaries = RandomElements(type, blocks * (2 * dim + 2), rng, any_bits);
    std::vector<float> queries(group * dim);
    for (float& q : queries) {
      q = std::normal_distribution<float>(0, 2)(rng);
      if (any_bits && rng() % 40 == 0) q = std::array{kInf, -kInf, kNan, 0.0f, -0.0f}[rng() % 5];
    }
    const double weight =
        std::array{1.0, 0.0, 0.5, std::uniform_real_distribution<double>(0, 1)(rng)}[rng() % 4];
    const ScoreInput in{summaries.data(),
                        stride,
                        type,
                        dim,
                        blocks,
                        queries.data(),
                        group,
                        kEveryCombine[rng() % kEveryCombine.size()],
                        weight};
    std::vector<float> scalar(blocks), simd(blocks);
    ScoreBlocksWith(ScoreKernel::kScalar, in, scalar.data(), scratch);
    ScoreBlocksWith(ScoreKernel::kAvx2, in, simd.data(), scratch);
    for (uint32_t b = 0; b < blocks; ++b) {
      if (std::isnan(scalar[b])) {
        EXPECT_TRUE(std::isnan(simd[b]));
      } else {
        ASSERT_EQ(Bits(scalar[b]), Bits(simd[b])) << scalar[b] << " against " << simd[b];
      }
    }
  }
}

TEST_P(ScoreTest, NeverReadsPastTheLastSummary) {
  const ElementType type = GetParam();
  for (uint32_t dim = 1; dim < 40; ++dim) {
    const size_t bytes = 2 * dim * ElementBytes(type);
    std::vector<std::byte> exact(bytes);  // a sanitizer sees one byte too many
    std::vector<float> query(dim, 1.0f);
    for (double weight : {1.0, 0.5}) {
      const auto scores = Scores({exact.data(), static_cast<int64_t>(bytes), type, dim, 1,
                                  query.data(), 1, GroupCombine::kMax, weight});
      EXPECT_EQ(scores[0], 0.0f);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, ScoreTest,
                         testing::Values(ElementType::kFloat16, ElementType::kBFloat16,
                                         ElementType::kFloat32),
                         [](const auto& type) { return std::string(ElementTypeName(type.param)); });

TEST(ScoreCombineTest, NanOfOneHeadMakesTheBlocksScoreNan) {
  const float summary[2] = {-1, 1};
  for (uint32_t at = 0; at < 6; ++at) {
    for (GroupCombine combine : kEveryCombine) {
      std::vector<float> queries(6, 2.0f);
      queries[at] = kNan;
      EXPECT_TRUE(std::isnan(Scores({reinterpret_cast<const std::byte*>(summary), 8,
                                     ElementType::kFloat32, 1, 1, queries.data(), 6, combine})[0]));
    }
  }
}

// Summaries of one dimension whose min and max are both `keys[b]`, so that a score is q * key.
std::vector<float> OneDimension(const std::vector<float>& keys, const std::vector<float>& queries,
                                GroupCombine combine) {
  std::vector<float> summaries;
  for (float key : keys) summaries.insert(summaries.end(), {key, key});
  return Scores({reinterpret_cast<const std::byte*>(summaries.data()), 8, ElementType::kFloat32, 1,
                 static_cast<uint32_t>(keys.size()), queries.data(),
                 static_cast<uint32_t>(queries.size()), combine});
}

// Head 0 likes great keys and has scores ten times those of head 1, which likes small ones.
TEST(ScoreCombineTest, NormalizedMaxGivesEachHeadItsBestBlock) {
  EXPECT_EQ(OneDimension({1, 2, 3}, {10, -1}, GroupCombine::kMax),
            (std::vector<float>{10, 20, 30}));
  EXPECT_EQ(OneDimension({1, 2, 3}, {10, -1}, GroupCombine::kNormalizedMax),
            (std::vector<float>{0, -1, 0}));
  // Six heads are scored four and two at a time.
  EXPECT_EQ(OneDimension({1, 2, 3}, {10, 10, 10, 10, 10, -1}, GroupCombine::kNormalizedMax),
            (std::vector<float>{0, -1, 0}));
}

TEST(ScoreCombineTest, AnInfiniteBestBlockIsStillTheBest) {
  const auto scores = OneDimension({1, kInf, kNan, -kInf}, {1}, GroupCombine::kNormalizedMax);
  EXPECT_EQ(scores[0], -kInf);
  EXPECT_EQ(scores[1], 0.0f);
  EXPECT_TRUE(std::isnan(scores[2]));
  EXPECT_EQ(scores[3], -kInf);
  EXPECT_EQ(OneDimension({-kInf, -kInf}, {1}, GroupCombine::kNormalizedMax),
            (std::vector<float>{0, 0}));
}

TEST(TopKTest, AgreesWithAStableSort) {
  std::mt19937 rng(3);
  std::vector<uint64_t> scratch;
  for (int round = 0; round < 500; ++round) {
    const uint32_t n = rng() % 200, k = rng() % 210;
    std::vector<float> scores(n);
    for (float& s : scores) {
      s = std::array{
          0.0f, -0.0f, kNan, kInf, -kInf, 1.5f, -1.5f, static_cast<float>(rng())}[rng() % 8];
    }
    std::vector<int32_t> expected(n);
    std::iota(expected.begin(), expected.end(), 0);
    std::stable_sort(expected.begin(), expected.end(), [&](int32_t a, int32_t b) {
      if (std::isnan(scores[a]) || std::isnan(scores[b])) {
        return !std::isnan(scores[a]) && std::isnan(scores[b]);
      }
      return scores[a] > scores[b];
    });
    expected.resize(k, -1);
    std::vector<int32_t> got(k, 77);
    EXPECT_EQ(TopK(scores.data(), n, k, got.data(), scratch), std::min(n, k));
    ASSERT_EQ(got, expected);
  }
}

TEST(SummaryTest, IsTheMinAndMaxOfTheKeys) {
  // Keys of 3 tokens, 4 dimensions, one float apart from each other.
  const float keys[3][5] = {
      {1, -0.0f, kNan, kNan, 9}, {-2, 0.0f, 4, kNan, 9}, {3, -0.0f, -4, kNan, 9}};
  float summary[8];
  SummariseKeys(ElementType::kFloat32, 4, reinterpret_cast<const std::byte*>(keys), 20, 3,
                reinterpret_cast<std::byte*>(summary));
  EXPECT_EQ(summary[0], -2.0f);
  EXPECT_EQ(Bits(summary[1]), 0x80000000u);
  EXPECT_EQ(summary[2], -4.0f);
  EXPECT_TRUE(std::isnan(summary[3]));
  EXPECT_EQ(summary[4], 3.0f);
  EXPECT_EQ(Bits(summary[5]), 0u);
  EXPECT_EQ(summary[6], 4.0f);
  EXPECT_TRUE(std::isnan(summary[7]));

  const uint16_t halves[2][1] = {{0xbf80}, {0x4000}};  // -1 and 2 in bfloat16
  uint16_t half_summary[2];
  SummariseKeys(ElementType::kBFloat16, 1, reinterpret_cast<const std::byte*>(halves), 2, 2,
                reinterpret_cast<std::byte*>(half_summary));
  EXPECT_EQ(half_summary[0], 0xbf80);
  EXPECT_EQ(half_summary[1], 0x4000);
}

}  // namespace
}  // namespace oasiskv
