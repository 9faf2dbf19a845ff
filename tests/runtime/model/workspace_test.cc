#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/cpu/cpu_kernels.h"
#include "runtime/model/model_config.h"
#include "runtime/model/parameter_layout.h"
#include "runtime/model/unit_compute.h"

// The workspace of whole steps follows their shapes, not the number of workers.
namespace terrace {
namespace {

struct Step {
  const char* preset;
  BatchShape batch;
};

std::size_t workspace_of(const Step& step, DType type, int workers) {
  const ModelConfig config = load_model_config(step.preset);
  const UnitCompute compute(config, parameter_layout(config), {type, step.batch, {}},
                            cpu_kernels());
  return compute.model(1, workers).workspace_bytes;
}

// Returns the bytes that the scratch memory of all workers together is made for, in fp32. It holds
// either the sums of the largest product's result, or the weights and score gradients of a panel of
// keys for all queries of a batch. (An attention op has more scratch than these two, but fewer
// queries in it at a time.)
std::size_t fp32_bytes_at_work(const ModelConfig& config, const BatchShape& batch) {
  constexpr std::int64_t kPanelKeys = 512;
  const std::int64_t widest = std::max(2 * config.intermediate, 3 * config.width);
  const std::int64_t product = std::max(batch.rows() * widest, config.vocabulary * config.width);
  const std::int64_t attention =
      2 * batch.rows() * config.heads * std::min(batch.positions, kPanelKeys);
  return static_cast<std::size_t>(std::max(product, attention)) * sizeof(float);
}

class Workspace : public testing::TestWithParam<DType> {};

TEST_P(Workspace, GrowsWithWorkersNoFurtherThanTheShapes) {
  for (const Step& step : {Step{"nano", {8, 128}}, Step{"nano", {1, 256}},
                           Step{"gpt2-124m", {1, 1024}}, Step{"gpt2-124m", {4, 512}}}) {
    SCOPED_TRACE(step.preset);
    const std::size_t of_one = workspace_of(step, GetParam(), 1);
    std::size_t before = of_one;
    for (const int workers : {2, 8, 64, 128}) {
      const std::size_t bytes = workspace_of(step, GetParam(), workers);
      EXPECT_GE(bytes, before) << workers;
      before = bytes;
    }
    EXPECT_LE(before - of_one, fp32_bytes_at_work(load_model_config(step.preset), step.batch));
    EXPECT_EQ(workspace_of(step, GetParam(), 4096), workspace_of(step, GetParam(), 65536));
  }
}

// For eight sequences of 128 tokens, no op has more operations than the product with the weights of
// gate and up: 1024 x 704 x 128 makes 185 million, which feed 23 workers of 8 million each.
TEST_P(Workspace, OfASmallModelIsThatOfFewWorkersOnAnyMachine) {
  const Step step{"nano", {8, 128}};
  const std::size_t of_few = workspace_of(step, GetParam(), 23);
  for (const int workers : {24, 64, 128, 65536}) {
    EXPECT_EQ(workspace_of(step, GetParam(), workers), of_few) << workers;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Workspace, testing::Values(DType::kF32, DType::kBF16),
                         [](const testing::TestParamInfo<DType>& info) {
                           return std::string(name_of(info.param));
                         });

}  // namespace
}  // namespace terrace
