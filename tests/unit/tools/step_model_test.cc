// Model files of oasis-bench step: what is read, what follows from it, what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "oasiskv/error.h"
#include "tools/bench/step/model/model.h"

namespace oasiskv::bench::step {
namespace {

using ::testing::HasSubstr;

constexpr char kSmall[] = R"({"name": "small", "layers": 2, "hidden": 512, "query_heads": 8,
  "kv_heads": 2, "head_dim": 128, "ffn": 1024, "vocab": 4096})";

std::string With(absl::string_view from, absl::string_view to) {
  std::string changed = absl::StrReplaceAll(kSmall, {{from, to}});
  EXPECT_NE(changed, kSmall) << from;
  return changed;
}

void ExpectRefused(absl::string_view json, absl::string_view why) {
  const auto model = ParseModel(json, "a.json");
  ASSERT_FALSE(model.ok()) << json;
  EXPECT_EQ(ErrorCodeOf(model.status()), ErrorCode::kInvalidArgument);
  EXPECT_THAT(std::string(model.status().message()), HasSubstr("a.json"));
  EXPECT_THAT(std::string(model.status().message()), HasSubstr(std::string(why)));
}

TEST(StepModelTest, SizesFollowFromTheHeads) {
  const auto m = ParseModel(kSmall, "a.json");
  ASSERT_TRUE(m.ok()) << m.status();
  EXPECT_EQ(m->name, "small");
  EXPECT_EQ(m->group(), 4u);
  EXPECT_EQ(m->qkv_columns, 8u * 128 + 2 * 2 * 128);
  EXPECT_EQ(m->output_rows, 8u * 128);
  EXPECT_EQ(m->entry_bytes(), 16u * 128 * 2 * 2);
  EXPECT_EQ(m->summary_bytes(SummaryType::kAsKeys), 2u * 128 * 2);
  EXPECT_EQ(m->summary_bytes(SummaryType::kFloat8), 2u * 128);
  EXPECT_EQ(m->kv_bytes_per_token(), 2u * 2 * 2 * 128 * 2);
  EXPECT_EQ(m->layer_weight_bytes(), 2u * 512 * (1536 + 1024 + 3 * 1024));
  EXPECT_EQ(m->layer_weight_bytes_read(1), m->layer_weight_bytes());
  EXPECT_EQ(m->weight_bytes(), 2 * m->layer_weight_bytes() + 2u * 2 * 512 * 4096);
}

TEST(StepModelTest, FewRowsHitFewExperts) {
  const auto m =
      ParseModel(With(R"("ffn": 1024)", R"("ffn": 1024, "experts": 64, "active_experts": 4)"), "a");
  ASSERT_TRUE(m.ok()) << m.status();
  EXPECT_EQ(m->experts_hit(1), 4u);
  EXPECT_EQ(m->rows_per_expert(1), 1u);
  EXPECT_EQ(m->experts_hit(1000), 64u);
  EXPECT_EQ(m->rows_per_expert(1000), 63u);  // 62.5
  EXPECT_LT(m->layer_weight_bytes_read(1), m->layer_weight_bytes());
  EXPECT_EQ(m->layer_weight_bytes_read(1000), m->layer_weight_bytes());
}

TEST(StepModelTest, LatentModelsHaveNoValues) {
  const std::string latent = absl::StrReplaceAll(
      kSmall, {{R"("kv_heads": 2)", R"("kv_heads": 1, "latent_value_dim": 512)"},
               {R"("head_dim": 128)", R"("head_dim": 576)"}});
  const auto m = ParseModel(latent, "a.json");
  ASSERT_TRUE(m.ok()) << m.status();
  EXPECT_TRUE(m->latent());
  EXPECT_EQ(m->kv_columns(), 576u);
  EXPECT_EQ(m->entry_bytes(), 16u * 576 * 2);
  EXPECT_EQ(m->attention_columns(), 8u * 512);
}

TEST(StepModelTest, RefusesWhatItCannotUse) {
  ExpectRefused("{", "not a JSON object");
  ExpectRefused("[1]", "not a JSON object");
  ExpectRefused(With(R"("layers": 2, )", ""), "no field 'layers'");
  ExpectRefused(With(R"("layers": 2)", R"("layers": 0)"), "'layers' is 0");
  ExpectRefused(With(R"("layers": 2)", R"("layers": -2)"), "'layers' is -2");
  ExpectRefused(With(R"("layers": 2)", R"("layers": "2")"), "'layers' is \"2\"");
  ExpectRefused(With(R"("layers": 2)", R"("layers": 4294967298)"), "'layers' is 4294967298");
  ExpectRefused(With(R"("layers": 2)", R"("layers": 2, "laters": 3)"), "unknown field 'laters'");
  ExpectRefused(With(R"("kv_heads": 2)", R"("kv_heads": 3)"), "not a multiple of kv_heads 3");
  ExpectRefused(With(R"("hidden": 512)", R"("hidden": 516)"), "hidden 516");
  ExpectRefused(With(R"("ffn": 1024)", R"("ffn": 1024, "experts": 8)"), "active_experts");
  ExpectRefused(With(R"("ffn": 1024)", R"("ffn": 1024, "latent_value_dim": 64)"), "kv_heads 1");
  ExpectRefused(With(R"("ffn": 1024)", R"("ffn": 1024, "qkv_columns": 504)"), "qkv_columns 504");
  ExpectRefused(With(R"("ffn": 1024)", R"("ffn": 1024, "output_rows": 1032)"), "output_rows 1032");
  ExpectRefused(With(R"("small")", "7"), "'name'");
}

TEST(StepModelTest, AMissingFileIsNamed) {
  const auto model = ReadModel("no/such/model.json");
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(ErrorCodeOf(model.status()), ErrorCode::kInvalidArgument);
  EXPECT_THAT(std::string(model.status().message()), HasSubstr("no/such/model.json"));
}

// The figures of the published setting: mechanism and sizes stand or fall with them.
TEST(StepModelTest, TheCommittedModelsAreRead) {
  const std::string folder = STEP_MODELS;
  const auto qwen = ReadModel(folder + "/qwen3-8b.json");
  ASSERT_TRUE(qwen.ok()) << qwen.status();
  EXPECT_EQ(qwen->kv_bytes_per_token(), 144u * 1024);
  EXPECT_NEAR(static_cast<double>(qwen->weight_bytes()), 16.38e9, 0.02e9);
  for (const char* name : {"llama-3.1-8b", "qwen3-235b-tp8", "deepseek-mla"}) {
    const auto model = ReadModel(absl::StrCat(folder, "/", name, ".json"));
    EXPECT_TRUE(model.ok()) << model.status();
  }
}

}  // namespace
}  // namespace oasiskv::bench::step
