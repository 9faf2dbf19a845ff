#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>

#include "base/half.h"
#include "runtime/checkpoint/hf_directory.h"
#include "runtime/checkpoint/hf_export.h"
#include "tests/runtime/checkpoint/hf_fixture.h"
#include "tests/runtime/model/small_models.h"
#include "tests/runtime/temporary_directory.h"

// Tensors of experts that are stored otherwise than they are kept: all experts of a layer as one
// tensor, and a bias of the choice that is the sum of three vectors.
namespace terrace {
namespace {

constexpr SmallModel kSizes = {.width = 8,
                               .heads = 2,
                               .key_value_heads = 1,
                               .head_width = 8,
                               .intermediate = 12,
                               .vocabulary = 11,
                               .positions = 6};
constexpr std::int64_t kExperts = 5;
constexpr std::int64_t kInner = 3;

std::vector<float> values_of(const UnitLayout& unit, const ParameterTensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
  kFetchRandom(unit, tensor, 0, values);
  return values;
}

std::vector<float> stored_values(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsTensor* const tensor = file.find(name);
  EXPECT_NE(tensor, nullptr) << name;
  std::vector<float> values(static_cast<std::size_t>(tensor->elements()));
  file.read(*tensor, 0, std::as_writable_bytes(std::span(values)));
  return values;
}

class HfExpertTensors : public testing::Test {
 protected:
  void save(const std::string& directory, const ModelConfig& config, DType dtype,
            FetchParameter fetch) const {
    write_hf_directory({.directory = temporary_.path(directory), .types = {.usual = dtype}}, config,
                       parameter_layout(config), fetch);
  }
  SafetensorsFile file_of(const std::string& directory) const {
    return SafetensorsFile(temporary_.path(directory + "/model.safetensors"));
  }
  HfDirectory open(const std::string& directory, const ModelConfig& config) {
    return HfDirectory(temporary_.path(directory), config, parameter_layout(config), log_);
  }

  const TemporaryDirectory temporary_;
  ListLog log_;
};

TEST_F(HfExpertTensors, OfALayerAreOneTensorOfMatrices) {
  const ModelConfig config = small_model("granitemoe", kSizes);
  save("m", config, DType::kF32, kFetchRandom);
  const SafetensorsFile file = file_of("m");
  const std::string prefix = "model.layers.1.block_sparse_moe.";
  using Shape = std::vector<std::uint64_t>;
  EXPECT_EQ(file.find(prefix + "input_linear.weight")->shape, (Shape{kExperts, 2 * kInner, 8}));
  EXPECT_EQ(file.find(prefix + "output_linear.weight")->shape, (Shape{kExperts, 8, kInner}));
  const UnitLayout block = parameter_layout(config).at(2);
  std::vector<float> input;
  std::vector<float> output;
  for (std::int32_t e = 0; e < kExperts; ++e) {
    for (const auto kind : {ParameterKind::kExpertGate, ParameterKind::kExpertUp}) {
      const std::vector<float> rows = values_of(block, *block.find(kind, e));
      input.insert(input.end(), rows.begin(), rows.end());
    }
    const std::vector<float> down = values_of(block, *block.find(ParameterKind::kExpertDown, e));
    output.insert(output.end(), down.begin(), down.end());
  }
  EXPECT_EQ(stored_values(file, prefix + "input_linear.weight"), input);
  EXPECT_EQ(stored_values(file, prefix + "output_linear.weight"), output);
}

TEST_F(HfExpertTensors, OfALayerAreReadFromOneTensor) {
  const ModelConfig config = small_model("granitemoe", kSizes);
  save("m", config, DType::kF32, kFetchRandom);
  const HfDirectory directory = open("m", config);
  for (const UnitLayout& unit : parameter_layout(config)) {
    for (const ParameterTensor& tensor : unit.tensors) {
      std::vector<float> got(static_cast<std::size_t>(tensor.elements()));
      directory.read(tensor, 0, got);
      EXPECT_EQ(got, values_of(unit, tensor)) << tensor.name;
    }
  }
  EXPECT_TRUE(log_.warnings.empty());
}

TEST_F(HfExpertTensors, OfALayerAreRefusedAsOneMatrix) {
  const ModelConfig config = small_model("granitemoe", kSizes);
  save("m", config, DType::kF32, kFetchRandom);
  SmallModel wider = kSizes;
  wider.intermediate = 16;
  TERRACE_EXPECT_THROW_WITH(open("m", small_model("granitemoe", wider)), ConfigError,
                            "input_linear.weight is [5, 6, 8], but according to config.json it "
                            "should be [5, 8, 8]");
}

// Numbers of all sizes, with all bits of fp32.
std::vector<float> awkward_biases() {
  return {1.0F / 3, -7.123456789F, std::bit_cast<float>(0x3F800001U), 1e-9F / 7, 0.0F};
}

TEST_F(HfExpertTensors, ABiasOfTheChoiceIsTheExactSumOfThreeNumbersOfBf16) {
  const ModelConfig config = small_model("glm4_moe", kSizes);
  const std::string name = "model.layers.1.mlp.gate.e_score_correction_bias";
  const std::vector<float> biases = awkward_biases();
  const auto fetch = [&](const UnitLayout& unit, const ParameterTensor& tensor, std::int64_t begin,
                         std::span<float> out) {
    if (tensor.kind != ParameterKind::kChoiceBias) return kFetchRandom(unit, tensor, begin, out);
    std::ranges::fill(out, 0.0F);
    std::ranges::copy(biases, out.begin());  // as the first addends
  };
  save("m", config, DType::kBF16, fetch);
  const SafetensorsFile file = file_of("m");
  EXPECT_EQ(file.find(name)->type, SafetensorsType::kF32);
  EXPECT_EQ(stored_values(file, name), biases);

  const HfDirectory directory = open("m", config);
  const UnitLayout block = parameter_layout(config).at(2);
  const ParameterTensor& bias = *block.find(ParameterKind::kChoiceBias);
  EXPECT_FALSE(bias.trainable);
  std::vector<float> addends(static_cast<std::size_t>(bias.elements()));
  directory.read(bias, 0, addends);
  for (const float addend : addends) EXPECT_EQ(to_float(to_bf16_nearest_even(addend)), addend);
  for (std::size_t e = 0; e < biases.size(); ++e) {
    EXPECT_EQ((addends[e] + addends[kExperts + e]) + addends[2 * kExperts + e], biases[e]);
  }
  std::vector<float> part(7);
  directory.read(bias, 4, part);  // of all three
  EXPECT_TRUE(std::ranges::equal(part, std::span(addends).subspan(4, 7)));

  save("again", config, DType::kBF16,
       [&](const UnitLayout& /*unit*/, const ParameterTensor& tensor, std::int64_t begin,
           std::span<float> out) { directory.read(tensor, begin, out); });
  EXPECT_EQ(stored_values(file_of("again"), name), biases);
}

}  // namespace
}  // namespace terrace
