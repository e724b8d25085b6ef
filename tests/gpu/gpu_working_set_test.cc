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

TEST(GpuWorkingSetTest, TwoAtOnceDoNotMeet) {
  OASISKV_NEEDS_GPU();
  Drive one(Case{.name = "one"}, 5);
  Drive other(Case{.name = "other", .ratio = 1.0, .where = Where::kMixed}, 6);
  for (int i = 0; i < 10; ++i) {
    one.Steps(3);
    other.Steps(3);
    if (testing::Test::HasFailure()) return;
  }
  one.CompareTotals();
  other.CompareTotals();
}

}  // namespace
}  // namespace oasiskv::gpu_test
