// ScoreTopK against ScoreBlocks and TopK of the cpu backend: the same blocks in the same order.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "tests/gpu/score_rig.h"

namespace oasiskv::gpu_test {
namespace {

using gpu::Element;
using gpu::QueryType;
using gpu::ScoreTuning;

constexpr std::array kElements = {Element::kFloat16, Element::kBFloat16, Element::kFloat32};
constexpr std::array kCombines = {GroupCombine::kMax, GroupCombine::kMean, GroupCombine::kSum,
                                  GroupCombine::kNormalizedMax};

// Where the lists first differ, or -1.
int64_t Difference(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  if (a.size() != b.size()) return 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) return static_cast<int64_t>(i);
  }
  return -1;
}

void ExpectSame(ScoreRig& rig, const ScoreOptions& options, const ScoreTuning& tuning = {},
                bool full_local = true) {
  rig.ForgetPredicted();
  ASSERT_LAUNCHED(rig.Score(tuning, full_local));
  ASSERT_CUDA(cudaDeviceSynchronize());
  const auto expected = rig.Expected(full_local), predicted = rig.Predicted();
  const int64_t at = Difference(expected, predicted);
  EXPECT_EQ(at, -1) << Describe(options) << ", stages " << tuning.stages << ", units "
                    << tuning.units << ", processors " << tuning.processors << ": place "
                    << at % options.resident << " of list " << at / options.resident << " has "
                    << predicted[at] << ", not " << expected[at];
}

void ExpectSame(const ScoreOptions& options) {
  ScoreRig rig(options);
  ExpectSame(rig, options);
}

TEST(ScoreKernelTest, EveryTypeCombineAndWeight) {
  OASISKV_NEEDS_GPU();
  uint64_t seed = 0;
  for (Element element : kElements) {
    for (GroupCombine combine : kCombines) {
      for (double weight : {1.0, 0.5, 0.001, 0.0}) {
        for (uint32_t group : {4u, 7u}) {
          ScoreOptions options;
          options.element = element;
          options.query_type = static_cast<QueryType>(seed % 3);
          options.group = group;
          options.combine = combine;
          options.bound_weight = weight;
          options.resident = options.max_blocks;  // the order of all
          options.seed = ++seed;
          ExpectSame(options);
        }
      }
    }
  }
}

TEST(ScoreKernelTest, EveryDimensionAndGroup) {
  OASISKV_NEEDS_GPU();
  uint64_t seed = 100;
  for (uint32_t dim : {8u, 16u, 24u, 64u, 72u, 96u, 128u, 192u, 576u}) {
    for (uint32_t group : {1u, 2u, 3u, 4u, 5u, 8u, 9u, 16u, 128u}) {
      if (dim == 576 && group == 9) continue;
      ScoreOptions options;
      options.head_dim = dim;
      options.group = group;
      options.element = kElements[seed % 3];
      options.combine = kCombines[seed / 3 % 4];
      options.kv_heads = 1;
      options.slots = options.max_rows = 2;
      options.max_blocks = 40;
      options.seed = ++seed;
      ExpectSame(options);
    }
  }
}

TEST(ScoreKernelTest, TiesGoToTheLowerBlock) {
  OASISKV_NEEDS_GPU();
  for (uint32_t dim : {8u, 64u}) {
    for (uint32_t resident : {1u, 5u, 100u, 128u, 300u, 1024u}) {
      ScoreOptions options;
      options.keys = Keys::kFew;
      options.head_dim = dim;
      options.max_blocks = 1100;
      options.resident = resident;
      options.group = 1 + resident % 3;
      options.seed = 200 + resident;
      ExpectSame(options);
    }
  }
}

TEST(ScoreKernelTest, NumbersOfEveryKind) {
  OASISKV_NEEDS_GPU();
  uint64_t seed = 300;
  for (Keys keys : {Keys::kSpecial, Keys::kAnyBits}) {
    for (Element element : kElements) {
      for (GroupCombine combine : kCombines) {
        for (double weight : {1.0, 0.7}) {
          ScoreOptions options;
          options.element = element;
          options.combine = combine;
          options.bound_weight = weight;
          options.keys = keys;
          options.special_queries = seed % 2 == 0;
          options.head_dim = seed % 3 == 0 ? 8 : 64;
          options.group = 1 + seed % 5;
          options.max_blocks = 300;
          options.resident = 300;
          options.seed = ++seed;
          ExpectSame(options);
        }
      }
    }
  }
}

TEST(ScoreKernelTest, EveryNumberOfBlocksAndOfResidents) {
  OASISKV_NEEDS_GPU();
  uint64_t seed = 400;
  for (uint32_t blocks : {1u, 2u, 15u, 16u, 17u, 128u, 129u, 1000u, 2048u, 8192u}) {
    for (uint32_t resident : {1u, 16u, 128u, 1024u}) {
      if (resident > blocks && resident != 16) continue;
      ScoreOptions options;
      options.max_blocks = blocks;
      options.resident = resident;
      options.head_dim = 64;
      options.combine = kCombines[seed % 4];
      options.slots = options.max_rows = 2;
      options.seed = ++seed;
      ExpectSame(options);
    }
  }
}

TEST(ScoreKernelTest, EveryLayOverTheGpu) {
  OASISKV_NEEDS_GPU();
  for (GroupCombine combine : kCombines) {
    for (uint32_t blocks : {40u, 1500u, 8192u}) {
      ScoreOptions options;
      options.max_blocks = blocks;
      options.resident = 128;
      options.head_dim = 64;
      options.combine = combine;
      options.group = blocks == 1500 ? 10 : 3;
      options.keys = blocks == 40 ? Keys::kFew : Keys::kNumbers;
      options.seed = 500 + blocks;
      ScoreRig rig(options);
      for (uint32_t slot = 0; slot < options.slots; ++slot) {
        rig.SetBlocks(slot, blocks - slot * (blocks / 5), 3);
      }
      for (uint32_t stages : {1u, 2u, 3u}) {
        ExpectSame(rig, options, {.stages = stages, .together = 1});
        ExpectSame(rig, options, {.stages = stages, .chunk = 8 * stages});
      }
      for (uint32_t units : {1u, 2u, 5u}) {
        ExpectSame(rig, options, {.units = units, .processors = 1});
        ExpectSame(rig, options, {.units = units, .processors = 7});
      }
    }
  }
}

// Chunks that end within a row and within a pair, and rows without a block.
TEST(ScoreKernelTest, ManyRowsOfDifferentLength) {
  OASISKV_NEEDS_GPU();
  for (GroupCombine combine : {GroupCombine::kMax, GroupCombine::kNormalizedMax}) {
    ScoreOptions options;
    options.slots = options.max_rows = 150;
    options.kv_heads = 4;
    options.head_dim = 16;
    options.max_blocks = 150;
    options.resident = 16;
    options.group = combine == GroupCombine::kMax ? 2 : 12;
    options.combine = combine;
    options.row_gap = 24;
    options.seed = 600;
    ScoreRig rig(options);
    for (uint32_t slot = 0; slot < options.slots; ++slot) {
      rig.SetBlocks(slot, slot * 37 % options.max_blocks, slot % 3 == 0 ? 16 : 5);
    }
    ExpectSame(rig, options);
    ExpectSame(rig, options, {}, false);
    ExpectSame(rig, options, {.stages = 2, .units = 3});
    ExpectSame(rig, options, {.processors = 3});
    ExpectSame(rig, options, {.units = 1, .processors = 131});
  }
}

TEST(ScoreKernelTest, InactiveRowsAreLeftAlone) {
  OASISKV_NEEDS_GPU();
  ScoreOptions options;
  options.slots = 6;
  options.max_rows = 4;
  ScoreRig rig(options);
  rig.SetRows({5, 0, 3, 1}, 2);
  ExpectSame(rig, options);
  rig.SetRows({4, 2, 3, 1}, 0);
  ExpectSame(rig, options);
  rig.SetRows({4, 2, 3, 1}, 9);  // never more than max_rows
  ExpectSame(rig, options);
}

TEST(ScoreKernelTest, AFullLocalBlockIsACandidate) {
  OASISKV_NEEDS_GPU();
  ScoreOptions options;
  options.max_blocks = 50;
  options.resident = 50;
  ScoreRig rig(options);
  rig.SetBlocks(0, 49, 16);
  rig.SetBlocks(1, 49, 15);
  rig.SetBlocks(2, 0, 16);
  rig.SetBlocks(3, 0, 0);
  ExpectSame(rig, options);
  ExpectSame(rig, options, {}, false);
}

TEST(ScoreKernelTest, WhatDoesNotFitIsNamed) {
  OASISKV_NEEDS_GPU();
  ScoreOptions options;
  options.max_blocks = 100;
  ScoreRig rig(options);
  rig.shape.max_blocks = 200'000;
  EXPECT_STRNE(rig.Score(), nullptr);
  rig.shape.max_blocks = 100;
  rig.shape.head_dim = 4;
  EXPECT_STRNE(rig.Score(), nullptr);
  rig.shape.head_dim = 24;
  rig.shape.summaries = SummaryType::kFloat8;
  rig.shape.summary_bytes = 48;
  EXPECT_STRNE(rig.Score(), nullptr);
  rig.shape.summaries = SummaryType::kAsKeys;
  rig.shape.summary_bytes = 2 * rig.shape.key_bytes;
  rig.shape.head_dim = options.head_dim;
  rig.mem.scores = nullptr;
  EXPECT_STRNE(rig.Score(), nullptr);
}

ScoreOptions Float8Options(uint64_t seed) {
  ScoreOptions options;
  options.summaries = SummaryType::kFloat8;
  options.element = kElements[seed % 3];
  options.query_type = static_cast<QueryType>(seed / 3 % 3);
  options.seed = seed;
  return options;
}

TEST(Float8ScoreTest, EveryTypeCombineAndWeight) {
  OASISKV_NEEDS_GPU();
  uint64_t seed = 700;
  for (int types = 0; types < 3; ++types) {
    for (GroupCombine combine : kCombines) {
      for (double weight : {1.0, 0.5, 0.0}) {
        for (uint32_t group : {4u, 7u}) {
          ScoreOptions options = Float8Options(seed++);
          options.group = group;
          options.combine = combine;
          options.bound_weight = weight;
          options.resident = options.max_blocks;  // the order of all
          ExpectSame(options);
        }
      }
    }
  }
}

// Halves that end within a stage, with it, and beyond it.
TEST(Float8ScoreTest, EveryDimensionAndGroup) {
  OASISKV_NEEDS_GPU();
  uint64_t seed = 800;
  for (uint32_t dim : {16u, 32u, 48u, 112u, 128u, 144u, 256u, 576u}) {
    for (uint32_t group : {1u, 3u, 4u, 5u, 8u, 16u}) {
      ScoreOptions options = Float8Options(seed++);
      options.head_dim = dim;
      options.group = group;
      options.combine = kCombines[seed % 4];
      options.kv_heads = 1;
      options.slots = options.max_rows = 2;
      options.max_blocks = 40;
      options.resident = 40;
      ExpectSame(options);
    }
  }
}

TEST(Float8ScoreTest, TiesGoToTheLowerBlock) {
  OASISKV_NEEDS_GPU();
  for (uint32_t resident : {1u, 100u, 300u, 1024u}) {
    ScoreOptions options = Float8Options(900 + resident);
    options.keys = Keys::kFew;
    options.head_dim = 64;
    options.max_blocks = 1100;
    options.resident = resident;
    options.group = 1 + resident % 3;
    ExpectSame(options);
  }
}

// NaN, 448 for all that is greater, subnormals, zeros of both signs; minima above maxima.
TEST(Float8ScoreTest, NumbersOfEveryKind) {
  OASISKV_NEEDS_GPU();
  uint64_t seed = 1000;
  for (Keys keys : {Keys::kSpecial, Keys::kAnyBits}) {
    for (GroupCombine combine : kCombines) {
      for (double weight : {1.0, 0.7}) {
        for (bool special_queries : {false, true}) {
          ScoreOptions options = Float8Options(seed++);
          options.combine = combine;
          options.bound_weight = weight;
          options.keys = keys;
          options.special_queries = special_queries;
          options.head_dim =
              seed % 3 == 0 ? 16 : 64;  // with 16 some blocks of any bits have no NaN
          options.group = 1 + seed % 5;
          options.max_blocks = options.resident = 300;
          ExpectSame(options);
        }
      }
    }
  }
}

TEST(Float8ScoreTest, EveryNumberOfBlocksAndLayOverTheGpu) {
  OASISKV_NEEDS_GPU();
  for (uint32_t blocks : {1u, 15u, 17u, 129u, 2048u, 8192u}) {
    ScoreOptions options = Float8Options(1100 + blocks);
    options.max_blocks = blocks;
    options.resident = std::min(128u, blocks);
    if (blocks == 2048) options.head_dim = 256;  // two stages a tile
    options.group = blocks == 129 ? 10 : 4;
    ScoreRig rig(options);
    for (uint32_t slot = 0; slot < options.slots; ++slot) {
      rig.SetBlocks(slot, blocks - slot * (blocks / 5), 3);
    }
    ExpectSame(rig, options);
    for (uint32_t stages : {1u, 2u, 3u}) {
      ExpectSame(rig, options, {.stages = stages, .together = 1});
      ExpectSame(rig, options, {.stages = stages, .chunk = 8 * stages});
    }
    ExpectSame(rig, options, {.units = 2, .processors = 7});
  }
}

}  // namespace
}  // namespace oasiskv::gpu_test
