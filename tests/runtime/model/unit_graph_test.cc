#include "runtime/model/unit_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "runtime/model/unit_compute.h"
#include "tests/runtime/model/small_models.h"

// The steps that a unit gets if it is written down as layers, and the memory that they touch.
namespace terrace {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr BatchShape kGraphBatch = {2, 8};

ComputeModel described(const ModelConfig& config, const TensorSplit& split) {
  const UnitCompute compute(config, parameter_layout(config, 1, split),
                            {DType::kF32, kGraphBatch, split}, cpu_kernels());
  return compute.model(2, 1);
}

ModelConfig plain_llama() { return small_model("llama", {}); }

// Returns steps as text: the name of a compute step, > for a gather, + for a sum.
std::vector<std::string> step_names(const std::vector<UnitStep>& steps) {
  std::vector<std::string> names;
  for (const UnitStep& step : steps) {
    names.emplace_back(step.kind == UnitStep::Kind::kGather ? ">"
                       : step.kind == UnitStep::Kind::kSum  ? "+"
                                                            : step.name);
  }
  return names;
}

bool step_reads(const UnitStep& step, Role role) {
  return std::ranges::find(step.reads, role, &UnitAccess::role) != step.reads.end();
}
bool step_writes(const UnitStep& step, Role role) {
  return std::ranges::find(step.writes, role, &UnitAccess::role) != step.writes.end();
}

TEST(UnitGraph, OneRankHasOneOpAPass) {
  const ComputeModel model = described(plain_llama(), {});
  ASSERT_EQ(model.units.size(), 4U);
  for (const UnitModel& unit : model.units) {
    EXPECT_THAT(unit.between, IsEmpty());
    ASSERT_EQ(unit.forward.size(), 1U);
    EXPECT_EQ(unit.forward.front().name, "");
  }
  const UnitModel& block = model.units[1];
  ASSERT_EQ(block.recompute.size(), 1U);
  ASSERT_EQ(block.backward.size(), 1U);
  EXPECT_TRUE(step_writes(block.forward[0], Role::kHiddenOut));
  EXPECT_TRUE(step_writes(block.forward[0], Role::kSaved));
  EXPECT_FALSE(step_reads(block.forward[0], Role::kSaved));  // it makes what it saves
  EXPECT_FALSE(step_writes(block.recompute[0], Role::kHiddenOut));
  EXPECT_TRUE(step_reads(block.backward[0], Role::kSaved));
  EXPECT_TRUE(step_writes(block.backward[0], Role::kGradient));
  EXPECT_EQ(model.units.back().saved_bytes, 0U);  // the head's backward is in its op
}

// The recomputation leaves out the last product. The backward makes each product twice.
TEST(UnitGraph, FlopsAreThoseOfTheProducts) {
  const ModelConfig config = plain_llama();
  const UnitModel block = described(config, {}).units[1];
  const double rows = 16;
  const double weights = 64.0 * (64 + 32 + 32) + 64.0 * 64 + 3 * 64.0 * 176;
  const double attention = 4 * rows * 4 * 64;
  EXPECT_DOUBLE_EQ(block.forward_flops, 2 * rows * weights + attention);
  EXPECT_DOUBLE_EQ(block.backward_flops, 2 * block.forward_flops);
  EXPECT_DOUBLE_EQ(block.recompute[0].flops, block.forward_flops - 2 * rows * 64 * 176);
}

// A block saves normed rows, q|k|v, attended rows, the middle, normed rows, gate|up and activated
// rows. It also saves for each row two statistics and the log sum of each head.
TEST(UnitGraph, SavesWhatTheBackwardReads) {
  const UnitModel block = described(plain_llama(), {}).units[1];
  const std::size_t floats = 64 + 128 + 64 + 64 + 64 + 2 * 176 + 176 + 1 + 1 + 4;
  EXPECT_EQ(block.saved_bytes, 16 * floats * sizeof(float));
}

TEST(UnitGraph, TensorRanksExchangeBetweenSteps) {
  const UnitModel shared = described(plain_llama(), {.ranks = 2, .shares_rows = true}).units[1];
  EXPECT_THAT(step_names(shared.forward),
              ElementsAre("norm1", ">", "attention", "+", "norm2", ">", "mlp", "+", "residual"));
  EXPECT_THAT(step_names(shared.recompute),
              ElementsAre("norm1", ">", "attention", "+", "norm2", ">", "mlp"));
  EXPECT_THAT(step_names(shared.backward),
              ElementsAre(">", ">", "mlp", "+", "norm2", ">", ">", "attention", "+", "norm1"));
  const UnitModel whole_rows = described(plain_llama(), {.ranks = 2}).units[1];
  EXPECT_THAT(step_names(whole_rows.forward),
              ElementsAre("norm1", "attention", "+", "norm2", "mlp", "+", "residual"));
  EXPECT_THAT(step_names(whole_rows.backward),
              ElementsAre("mlp", "+", "norm2", "attention", "+", "norm1"));
  const UnitModel head = described(plain_llama(), {.ranks = 2, .shares_rows = true}).units.back();
  EXPECT_THAT(step_names(head.forward), ElementsAre("norm", ">", "sums", ">", "loss"));
  EXPECT_THAT(step_names(head.backward),
              ElementsAre("norm", ">", "sums", ">", "loss", "+", "norm backward"));
}

// If a norm covers the whole width of the heads, ranks exchange sums of squares. In the backward
// they exchange the gradient's component along the row. Both are done for queries and for keys.
TEST(UnitGraph, NormsOfTheWholeWidthNeedAllRanks) {
  ModelConfig config = plain_llama();
  config.query_key_norms = QueryKeyNorms::kWholeWidth;
  config.names.at(static_cast<std::size_t>(ParameterKind::kQueryNorm)).name = "q_norm.{}";
  config.names.at(static_cast<std::size_t>(ParameterKind::kKeyNorm)).name = "k_norm.{}";
  const UnitModel alone = described(config, {}).units[1];
  EXPECT_EQ(alone.forward.size(), 1U);
  const UnitModel shared = described(config, {.ranks = 2}).units[1];
  EXPECT_THAT(step_names(shared.forward), ElementsAre("norm1", "attention", ">", ">", "mixing", "+",
                                                      "norm2", "mlp", "+", "residual"));
  EXPECT_THAT(step_names(shared.backward), ElementsAre("mlp", "+", "norm2", "attention", ">", ">",
                                                       "query and key norms", "+", "norm1"));
}

// A rank's gradient of a norm of heads covers its own heads, whether or not ranks share rows.
TEST(UnitGraph, GradientsOfSharesAreSummed) {
  ModelConfig config = plain_llama();
  EXPECT_TRUE(described(config, {.ranks = 2}).groups[1].summed.empty());
  const ElementSpan rows = described(config, {.ranks = 2, .shares_rows = true}).groups[1].summed;
  EXPECT_EQ(rows.end - rows.begin, 2 * 64);
  config.query_key_norms = QueryKeyNorms::kEachHead;
  config.names.at(static_cast<std::size_t>(ParameterKind::kQueryNorm)).name = "q_norm.{}";
  config.names.at(static_cast<std::size_t>(ParameterKind::kKeyNorm)).name = "k_norm.{}";
  const ElementSpan heads = described(config, {.ranks = 2}).groups[1].summed;
  EXPECT_EQ(heads.end - heads.begin, 2 * 16);
  const ElementSpan both = described(config, {.ranks = 2, .shares_rows = true}).groups[1].summed;
  EXPECT_EQ(both.end - both.begin, 2 * 16 + 2 * 64);
}

}  // namespace
}  // namespace terrace
