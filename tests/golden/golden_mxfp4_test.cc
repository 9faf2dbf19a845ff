#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/checkpoint/hf_directory.h"
#include "runtime/checkpoint/hf_export.h"
#include "tests/golden/golden_case.h"
#include "tests/runtime/temporary_directory.h"

// Experts in MXFP4 have the numbers that transformers makes of them (make_mxfp4.py).
namespace terrace {
namespace {

class SilentWeightLog final : public Log {
 public:
  void info(std::string_view) override {}
  void warning(std::string_view line) override { ADD_FAILURE() << line; }
};

// The numbers of a bf16 tensor.
std::vector<float> read_bf16(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsTensor* const tensor = file.find(name);
  if (tensor == nullptr) throw std::out_of_range(file.path() + " has no " + name);
  std::vector<std::uint16_t> halves(tensor->elements());
  file.read(*tensor, 0, std::as_writable_bytes(std::span(halves)));
  std::vector<float> numbers;
  for (const std::uint16_t half : halves) {
    numbers.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16U));
  }
  return numbers;
}

bool has_same_bits(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

class GoldenMxfp4 : public testing::Test {
 protected:
  const std::string directory_ = golden_mxfp4_directory();
  const ModelConfig config_ = load_model_config(directory_);
  const std::vector<UnitLayout> layout_ = parameter_layout(config_);
  SilentWeightLog log_;
  const HfDirectory weights_{directory_, config_, layout_, log_};
  const SafetensorsFile numbers_{directory_ + "/numbers.safetensors"};
};

TEST_F(GoldenMxfp4, HasTheBitsOfTransformers) {
  const std::int64_t E = config_.experts.count;
  const std::int64_t I = config_.experts.intermediate;
  const std::int64_t C = config_.width;
  const std::string experts = "model.layers.0.mlp.experts.";
  const std::vector<float> gate_up = read_bf16(numbers_, experts + "gate_up_proj");  // [E,C,2I]
  const std::vector<float> down = read_bf16(numbers_, experts + "down_proj");        // [E,I,C]
  ASSERT_EQ(gate_up.size(), static_cast<std::size_t>(E * C * 2 * I));
  std::int64_t special = 0;
  for (std::int32_t e = 0; e < E; ++e) {
    std::vector<float> read[3];
    for (const auto kind :
         {ParameterKind::kExpertGate, ParameterKind::kExpertUp, ParameterKind::kExpertDown}) {
      const ParameterTensor* const tensor = layout_[1].find(kind, e);
      std::vector<float>& values =
          read[static_cast<int>(kind) - static_cast<int>(ParameterKind::kExpertGate)];
      values.resize(static_cast<std::size_t>(tensor->elements()));
      weights_.read(*tensor, 0, values);
      std::vector<float> part(static_cast<std::size_t>(tensor->elements() / 3));
      weights_.read(*tensor, 7, part);
      for (std::size_t i = 0; i < part.size(); ++i) {
        ASSERT_TRUE(has_same_bits(part[i], values[i + 7])) << tensor->name << " " << i;
      }
    }
    for (std::int64_t c = 0; c < C; ++c) {
      for (std::int64_t i = 0; i < I; ++i) {
        const auto at = static_cast<std::size_t>((e * C + c) * 2 * I + 2 * i);
        const auto own = static_cast<std::size_t>(i * C + c);
        ASSERT_TRUE(has_same_bits(read[0][own], gate_up[at])) << e << " " << c << " " << i;
        ASSERT_TRUE(has_same_bits(read[1][own], gate_up[at + 1])) << e << " " << c << " " << i;
        ASSERT_TRUE(has_same_bits(read[2][static_cast<std::size_t>(c * I + i)],
                                  down[static_cast<std::size_t>((e * I + i) * C + c)]));
        special += std::isfinite(gate_up[at]) && std::isnormal(gate_up[at]) ? 0 : 1;
      }
    }
  }
  EXPECT_GT(special, 0);  // zeros, denormal and infinite numbers are among them
}

TEST_F(GoldenMxfp4, CountsAsBf16) {
  EXPECT_EQ(weights_.types(), (WeightTypes{.usual = DType::kBF16}));
}

TEST_F(GoldenMxfp4, IsWrittenAsBf16WithTheNamesOfTransformers) {
  EXPECT_EQ(config_.json.find("quantization_config"), std::string::npos);
  const TemporaryDirectory written;
  write_hf_directory({.directory = written.path("model"), .types = weights_.types()}, config_,
                     layout_,
                     [&](const UnitLayout&, const ParameterTensor& tensor, std::int64_t begin,
                         std::span<float> out) { weights_.read(tensor, begin, out); });
  const SafetensorsFile file(written.path("model/model.safetensors"));
  for (const char* name : {"gate_up_proj", "down_proj"}) {
    const std::string whole = std::string("model.layers.0.mlp.experts.") + name;
    const std::vector<float> got = read_bf16(file, whole);
    const std::vector<float> want = read_bf16(numbers_, whole);
    ASSERT_EQ(file.find(whole)->shape, numbers_.find(whole)->shape);
    for (std::size_t i = 0; i < want.size(); ++i) {
      ASSERT_TRUE(has_same_bits(got[i], want[i])) << whole << " " << i;
    }
  }
}

}  // namespace
}  // namespace terrace
