#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "runtime/model/adapter.h"
#include "runtime/model/adapter_targets.h"
#include "tests/runtime/model/block_run.h"
#include "tests/runtime/model/random_block.h"
#include "tests/runtime/model/small_models.h"

// Adapters with magnitudes (DoRA), compared with a block whose matrices are m / n (W + s B A), row
// by row, computed here in double precision.
namespace terrace {
namespace {

constexpr BatchShape kBatch = {2, 6};
constexpr std::int64_t kDoraRank = 3;

struct MagnitudeCase {
  const char* name;
  std::string_view family;
  bool bias;
  std::vector<std::string> patterns;
};

const std::vector<MagnitudeCase>& magnitude_cases() {
  static const std::vector<MagnitudeCase> kCases = {
      {"llama", "llama", true, {}},
      {"some_of_llama", "llama", true, {"k_proj", "down_proj"}},
      {"ends_of_llama", "llama", false, {"q_proj", "v_proj", "up_proj"}},
      {"gpt2", "gpt2", true, {}},
      {"phi3", "phi3", false, {}},
      {"some_of_phi3", "phi3", false, {"qkv_proj", "o_proj"}},
      {"gemma2", "gemma2", false, {}},
  };
  return kCases;
}

ModelConfig plain_config(const MagnitudeCase& c) {
  return small_model(c.family, {.layers = 2,
                                .width = 32,
                                .head_width = 8,
                                .intermediate = 48,
                                .bias = c.bias && c.family == "llama"});
}

ModelConfig dora_config(const MagnitudeCase& c) {
  AdapterOptions adapter;
  adapter.rank = kDoraRank;
  adapter.alpha = 5;
  adapter.has_magnitudes = true;
  return with_adapter(plain_config(c), adapter, c.patterns);
}

// The numbers of a block, by parameter.
struct BlockValues {
  UnitLayout layout;
  std::vector<float> all;

  std::span<float> of(ParameterKind kind) {
    const ParameterTensor& tensor = *layout.find(kind);
    return std::span(all).subspan(static_cast<std::size_t>(tensor.offset),
                                  static_cast<std::size_t>(tensor.elements()));
  }
};

BlockValues random_values(const ModelConfig& config) {
  return {parameter_layout(config).at(1), random_block(config)};
}

// For a weight with an adapter: W + s B A, the norms of its rows, and the factors that multiply the
// rows.
struct Direction {
  ParameterKind a = ParameterKind::kQueryA;
  std::int64_t columns = 0;
  std::vector<double> sum, norms, factors;
};

std::map<ParameterKind, Direction> directions_of(const ModelConfig& config, BlockValues& block) {
  std::map<ParameterKind, Direction> directions;
  const double s = config.adapter.scale_of("");
  for (const ParameterTensor& weight : block.layout.tensors) {
    if (!is_layer_weight(weight.kind) || block.layout.find(adapter_b(weight.kind)) == nullptr) {
      continue;
    }
    Direction d;
    for (const ParameterTensor& other : block.layout.tensors) {
      const bool is_first = is_layer_weight(other.kind) &&
                            other.stored_name == weight.stored_name &&
                            block.layout.find(adapter_a(other.kind)) != nullptr;
      if (is_first) d.a = adapter_a(other.kind);
    }
    d.columns = weight.columns;
    const std::span<float> w = block.of(weight.kind);
    const std::span<float> a = block.of(d.a);
    const std::span<float> b = block.of(adapter_b(weight.kind));
    const std::span<float> m = block.of(adapter_magnitude(weight.kind));
    for (std::int64_t row = 0; row < weight.rows; ++row) {
      double squares = 0;
      for (std::int64_t c = 0; c < d.columns; ++c) {
        double sum = w[row * d.columns + c];
        for (std::int64_t k = 0; k < kDoraRank; ++k) {
          sum += s * b[row * kDoraRank + k] * a[k * d.columns + c];
        }
        d.sum.push_back(sum);
        squares += sum * sum;
      }
      d.norms.push_back(std::sqrt(squares));
      d.factors.push_back(m[row] / d.norms.back());
    }
    directions[weight.kind] = std::move(d);
  }
  return directions;
}

void expect_near(std::span<const float> got, std::span<const double> want,
                 const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double apart = 0;
  double size = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    apart += (got[i] - want[i]) * (got[i] - want[i]);
    size += want[i] * want[i];
  }
  // Allows some hundred fp32 roundings, few of which have the same sign.
  EXPECT_LE(std::sqrt(apart), 3e-5 * std::sqrt(size)) << what;
  EXPECT_GT(size, 0) << what;
}

std::vector<double> wide(std::span<const float> values) { return {values.begin(), values.end()}; }

class AdapterMagnitudes : public testing::TestWithParam<std::size_t> {
 protected:
  AdapterMagnitudes()
      : choice_(magnitude_cases().at(GetParam())),
        config_(dora_config(choice_)),
        plain_(plain_config(choice_)),
        block_(random_values(config_)),
        directions_(directions_of(config_, block_)) {
    dense_.layout = parameter_layout(plain_).at(1);
    dense_.all.resize(static_cast<std::size_t>(dense_.layout.padded_elements));
    for (const ParameterTensor& tensor : dense_.layout.tensors) {
      std::ranges::copy(block_.of(tensor.kind), dense_.of(tensor.kind).begin());
      const auto found = directions_.find(tensor.kind);
      if (found == directions_.end()) continue;
      const Direction& d = found->second;
      for (std::size_t i = 0; i < d.sum.size(); ++i) {
        const std::size_t row = i / static_cast<std::size_t>(d.columns);
        dense_.of(tensor.kind)[i] = static_cast<float>(d.factors[row] * d.sum[i]);
      }
    }
  }

  std::vector<float> rows(std::uint32_t seed) const {
    return random_numbers(static_cast<std::size_t>(kBatch.rows() * config_.width), seed, 1.0F);
  }

  const MagnitudeCase& choice_;
  const ModelConfig config_;
  const ModelConfig plain_;
  BlockValues block_;
  std::map<ParameterKind, Direction> directions_;
  BlockValues dense_;
};

TEST_P(AdapterMagnitudes, ComputeAsMatricesWithTheseNorms) {
  BlockRun dense(plain_, {kBatch}, dense_.all);
  BlockRun run(config_, {kBatch}, block_.all);
  const std::vector<float> x = rows(5);
  const std::vector<float> dy = rows(6);
  const std::vector<float> y = dense.forward(x);
  dense.backward(dy);
  expect_near(run.forward(x), wide(y), "result");
  run.backward(dy);
  const double s = config_.adapter.scale_of("");
  std::map<ParameterKind, std::vector<double>> want;
  for (const auto& [kind, d] : directions_) {
    const std::vector<float> dw = dense.gradient_of(kind);
    const std::span<float> a = block_.of(d.a);
    const std::span<float> b = block_.of(adapter_b(kind));
    std::vector<double>& da = want[d.a];
    std::vector<double>& db = want[adapter_b(kind)];
    std::vector<double>& dm = want[adapter_magnitude(kind)];
    da.resize(a.size());
    db.resize(b.size());
    dm.resize(d.norms.size());
    for (std::size_t i = 0; i < dw.size(); ++i) {
      const std::size_t row = i / static_cast<std::size_t>(d.columns);
      const std::size_t column = i % static_cast<std::size_t>(d.columns);
      dm[row] += dw[i] * d.sum[i] / d.norms[row];
      // The gradient treats the norm as a constant.
      const double of_sum = s * d.factors[row] * dw[i];
      for (std::size_t k = 0; k < kDoraRank; ++k) {
        const std::size_t in_a = k * static_cast<std::size_t>(d.columns) + column;
        da[in_a] += b[row * kDoraRank + k] * of_sum;
        db[row * kDoraRank + k] += of_sum * a[in_a];
      }
    }
  }
  for (const auto& [kind, gradient] : want) {
    expect_near(run.gradient_of(kind), gradient, fmt::format("kind {}", static_cast<int>(kind)));
  }
}

// The second block's input gradient goes on to the first.
TEST_P(AdapterMagnitudes, PassTheGradientOn) {
  BlockRun dense(plain_, {kBatch}, dense_.all, 2);
  BlockRun run(config_, {kBatch}, block_.all, 2);
  const std::vector<float> x = rows(5);
  const std::vector<float> dy = rows(6);
  dense.forward(x);
  run.forward(x);
  expect_near(run.backward(dy), wide(dense.backward(dy)), "input gradient");
}

INSTANTIATE_TEST_SUITE_P(Cases, AdapterMagnitudes,
                         testing::Range(std::size_t{0}, magnitude_cases().size()),
                         [](const auto& info) { return magnitude_cases().at(info.param).name; });

TEST(AdapterMagnitudesLayout, HasVectorsWithoutDecayBehindTheMatrices) {
  const UnitLayout block = parameter_layout(dora_config(magnitude_cases().front())).at(1);
  const ParameterTensor& m = *block.find(ParameterKind::kDownMagnitude);
  EXPECT_EQ(m.stored_name, "base_model.model.model.layers.0.mlp.down_proj.lora_magnitude_vector");
  EXPECT_TRUE(m.trainable);
  EXPECT_TRUE(m.is_vector);
  EXPECT_FALSE(m.decay);
  EXPECT_LE(block.decayed_elements(), block.find(ParameterKind::kQueryMagnitude)->offset);
  const UnitLayout phi3 = parameter_layout(dora_config(magnitude_cases().at(4))).at(1);
  std::int64_t first = 0;
  for (const ParameterKind kind : {ParameterKind::kQueryMagnitude, ParameterKind::kKeyMagnitude,
                                   ParameterKind::kValueMagnitude}) {
    EXPECT_EQ(phi3.find(kind)->stored_first_row, first);
    EXPECT_EQ(phi3.find(kind)->stored_rows, 64);
    first += phi3.find(kind)->rows;
  }
}

}  // namespace
}  // namespace terrace
