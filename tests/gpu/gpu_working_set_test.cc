// The cuda backend against the cpu backend: maps, pages, plans and counts after every step,
// whatever the source, the layout of the pages and the mode.
#include <string>

#include "gtest/gtest.h"
#include "tests/gpu/gpu_drive.h"
#include "tests/gpu/transfer_rig.h"

namespace oasiskv::gpu_test {
namespace {

class PlansTest : public testing::TestWithParam<Case> {};

TEST_P(PlansTest, EqualThoseOfTheCpuBackend) {
  OASISKV_NEEDS_GPU();
  Drive drive(GetParam(), 1234);
  drive.Steps(70);
  drive.CompareTotals();
}

INSTANTIATE_TEST_SUITE_P(
    Cases, PlansTest,
    testing::Values(
        Case{.name = "capped"}, Case{.name = "no_cap", .ratio = 1.0},
        Case{.name = "cap_of_none", .ratio = 0.125},
        Case{.name = "exact", .mode = SelectionMode::kExact},
        Case{.name = "exact_remote", .mode = SelectionMode::kExact, .where = Where::kRemote},
        Case{.name = "remote", .where = Where::kRemote},
        Case{.name = "mixed", .element = ElementType::kFloat16, .where = Where::kMixed},
        Case{.name = "latent", .packing = Packing::kLatent, .ratio = 0.5},
        Case{.name = "latent_remote", .packing = Packing::kLatent, .where = Where::kRemote},
        Case{.name = "float32",
             .element = ElementType::kFloat32,
             .combine = GroupCombine::kNormalizedMax,
             .bound_weight = 0.5},
        Case{.name = "engine_pages",
             .combine = GroupCombine::kMean,
             .layout = Layout::kNhdWithTable},
        Case{.name = "engine_pages_latent",
             .packing = Packing::kLatent,
             .where = Where::kMixed,
             .layout = Layout::kNhdWithTable}),
    [](const auto& one) { return one.param.name; });

INSTANTIATE_TEST_SUITE_P(Apart, PlansTest,
                         testing::Values(Case{.name = "capped", .predict_processors = 16},
                                         Case{.name = "exact_mixed",
                                              .mode = SelectionMode::kExact,
                                              .where = Where::kMixed,
                                              .predict_processors = 24}),
                         [](const auto& one) { return one.param.name; });

INSTANTIATE_TEST_SUITE_P(Lists, PlansTest,
                         testing::Values(Case{.name = "lists", .predict = Predict::kLists},
                                         Case{.name = "lists_mixed_no_cap",
                                              .ratio = 1.0,
                                              .where = Where::kMixed,
                                              .predict = Predict::kLists},
                                         Case{.name = "lists_latent_remote",
                                              .packing = Packing::kLatent,
                                              .where = Where::kRemote,
                                              .predict = Predict::kLists},
                                         Case{.name = "lists_exact",
                                              .mode = SelectionMode::kExact,
                                              .predict = Predict::kLists}),
                         [](const auto& one) { return one.param.name; });

INSTANTIATE_TEST_SUITE_P(QueryTypes, PlansTest,
                         testing::Values(Case{.name = "bfloat16_queries",
                                              .query_type = GpuQueryType::kBFloat16},
                                         Case{.name = "float16_queries",
                                              .element = ElementType::kFloat16,
                                              .combine = GroupCombine::kSum,
                                              .query_type = GpuQueryType::kFloat16},
                                         Case{.name = "bfloat16_queries_exact",
                                              .mode = SelectionMode::kExact,
                                              .where = Where::kMixed,
                                              .query_type = GpuQueryType::kBFloat16},
                                         Case{.name = "float16_queries_latent_exact",
                                              .packing = Packing::kLatent,
                                              .mode = SelectionMode::kExact,
                                              .query_type = GpuQueryType::kFloat16}),
                         [](const auto& one) { return one.param.name; });

// Nothing moves for what Resolve leaves out: maps, pages, plans and counts are those of a capped
// cpu backend, and what is resolved is the top-K by definition.
INSTANTIATE_TEST_SUITE_P(
    Misses, PlansTest,
    testing::Values(
        Case{.name = "drop", .mode = SelectionMode::kExact, .miss = GpuMissPolicy::kDrop},
        Case{.name = "drop_remote",
             .mode = SelectionMode::kExact,
             .where = Where::kRemote,
             .query_type = GpuQueryType::kFloat16,
             .miss = GpuMissPolicy::kDrop},
        Case{.name = "report", .mode = SelectionMode::kExact, .miss = GpuMissPolicy::kReport},
        Case{.name = "report_engine_pages",
             .mode = SelectionMode::kExact,
             .where = Where::kMixed,
             .layout = Layout::kNhdWithTable,
             .miss = GpuMissPolicy::kReport}),
    [](const auto& one) { return one.param.name; });

// More pages than a prediction ranks.
INSTANTIATE_TEST_SUITE_P(Ranked, PlansTest,
                         testing::Values(Case{.name = "one", .ranked = 1, .ratio = 1.0},
                                         Case{.name = "half", .ranked = 4, .ratio = 0.5},
                                         Case{.name = "exact_remote",
                                              .mode = SelectionMode::kExact,
                                              .ranked = 5,
                                              .where = Where::kRemote},
                                         Case{.name = "report",
                                              .mode = SelectionMode::kExact,
                                              .ranked = 5,
                                              .miss = GpuMissPolicy::kReport}),
                         [](const auto& one) { return one.param.name; });

INSTANTIATE_TEST_SUITE_P(Parts, PlansTest,
                         testing::Values(Case{.name = "head_range", .parts = 1},
                                         Case{.name = "shards", .kv_heads = 4, .parts = 3},
                                         Case{.name = "shards_exact",
                                              .mode = SelectionMode::kExact,
                                              .where = Where::kMixed,
                                              .layout = Layout::kNhdWithTable,
                                              .kv_heads = 5,
                                              .parts = 2}),
                         [](const auto& one) { return one.param.name; });

INSTANTIATE_TEST_SUITE_P(Float8, PlansTest,
                         testing::Values(Case{.name = "float8", .summaries = SummaryType::kFloat8},
                                         Case{.name = "float8_exact_mixed",
                                              .mode = SelectionMode::kExact,
                                              .summaries = SummaryType::kFloat8,
                                              .where = Where::kMixed},
                                         Case{.name = "float8_latent_remote",
                                              .element = ElementType::kFloat16,
                                              .packing = Packing::kLatent,
                                              .ratio = 0.5,
                                              .summaries = SummaryType::kFloat8,
                                              .where = Where::kRemote},
                                         Case{.name = "float8_normalized_engine_pages",
                                              .element = ElementType::kFloat32,
                                              .combine = GroupCombine::kNormalizedMax,
                                              .bound_weight = 0.5,
                                              .summaries = SummaryType::kFloat8,
                                              .layout = Layout::kNhdWithTable}),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace oasiskv::gpu_test
