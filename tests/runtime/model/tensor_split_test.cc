#include "runtime/model/tensor_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "base/error.h"
#include "runtime/engine/training_state.h"
#include "runtime/model/parameter_layout.h"
#include "tests/runtime/model/small_models.h"

// The part of each tensor that a tensor-parallel rank has.
namespace terrace {
namespace {

using ::testing::HasSubstr;

ModelConfig model_of(std::string_view family, bool tied) {
  return small_model(family, {.width = 60,
                              .heads = 6,
                              .key_value_heads = 3,
                              .head_width = 10,
                              .intermediate = 99,
                              .vocabulary = 131,
                              .positions = 20,
                              .tied = tied,
                              .bias = true});
}

std::vector<UnitLayout> layout_of(const ModelConfig& model, std::int32_t rank) {
  return parameter_layout(model, 2, {.ranks = 3, .rank = rank, .shares_rows = true});
}

class TensorSplits : public testing::TestWithParam<std::tuple<std::string_view, bool>> {
 protected:
  const ModelConfig model_ = model_of(std::get<0>(GetParam()), std::get<1>(GetParam()));
  const std::vector<UnitLayout> whole_ = parameter_layout(model_);
};

// Each element of a tensor that is cut belongs to one rank. Each element of the others belongs to
// every rank.
TEST_P(TensorSplits, CoverTheModel) {
  for (std::size_t u = 0; u < whole_.size(); ++u) {
    std::vector<int> owners(static_cast<std::size_t>(whole_[u].elements), 0);
    std::vector<bool> cut(owners.size(), false);
    for (std::int32_t rank = 0; rank < 3; ++rank) {
      const UnitLayout unit = layout_of(model_, rank)[u];
      for (const ParameterTensor& tensor : unit.tensors) {
        for (std::int64_t i = 0; i < tensor.slice.elements_of(rank); ++i) {
          const std::int64_t of_tensor = tensor.slice.whole_of(i, tensor.slice.rank);
          ASSERT_EQ(tensor.slice.before(of_tensor, tensor.slice.rank), i);
          const auto at = static_cast<std::size_t>(tensor.slice.whole_offset + of_tensor);
          ++owners.at(at);
          cut.at(at) = tensor.cut != TensorCut::kReplicated;
        }
      }
    }
    for (const ElementSpan& padding : whole_[u].padding) {
      for (auto i = padding.begin; i < std::min(padding.end, whole_[u].elements); ++i) {
        ASSERT_EQ(std::exchange(owners.at(static_cast<std::size_t>(i)), 3), 0) << i;
      }
    }
    for (std::size_t i = 0; i < owners.size(); ++i) ASSERT_EQ(owners[i], cut[i] ? 1 : 3) << i;
  }
}

TEST_P(TensorSplits, AreOfOneSizeAndReplicateFromABlocksStart) {
  const std::vector<UnitLayout> first = layout_of(model_, 0);
  for (std::int32_t rank = 0; rank < 3; ++rank) {
    const std::vector<UnitLayout> part = layout_of(model_, rank);
    for (std::size_t u = 0; u < part.size(); ++u) {
      const UnitLayout& unit = part[u];
      EXPECT_EQ(unit.padded_elements, first[u].padded_elements);
      EXPECT_EQ(unit.padded_elements % (2 * kBlockElements), 0);
      EXPECT_EQ(unit.replicated, first[u].replicated);
      EXPECT_EQ(unit.replicated.begin % kBlockElements, 0);
      if (unit.experts.count > 0) continue;  // ARouterLiesAmongTheMatrices looks at these
      EXPECT_EQ(unit.summed.end, unit.summed.empty() ? 0 : unit.elements);
      std::int64_t last_cut = 0;
      for (const ParameterTensor& tensor : unit.tensors) {
        const bool is_cut = tensor.cut != TensorCut::kReplicated;
        if (is_cut) last_cut = tensor.offset + tensor.elements();
        EXPECT_EQ(tensor.offset < unit.replicated.begin, is_cut) << tensor.name;
        EXPECT_EQ(tensor.offset >= unit.summed.begin && !unit.summed.empty(),
                  tensor.gradient != GradientShare::kAll);
      }
      EXPECT_LE(last_cut, unit.replicated.begin);
    }
  }
}

// A state of the model: element i of a unit is i.
class CountedState final : public StateSource {
 public:
  void read(StateField, const UnitLayout& unit, std::int64_t begin,
            std::span<float> out) const override {
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::int64_t at = begin + static_cast<std::int64_t>(i);
      out[i] = at < unit.elements ? static_cast<float>(at) : 0.0F;
    }
  }
};

// Reads in pieces that end anywhere; padding is zero.
TEST_P(TensorSplits, ReadTheirPartOfAState) {
  const CountedState counted;
  const TensorPartState state(counted, whole_);
  for (std::int32_t rank = 0; rank < 3; ++rank) {
    for (const UnitLayout& unit : layout_of(model_, rank)) {
      std::vector<float> want(static_cast<std::size_t>(unit.padded_elements), 0.0F);
      for (const ParameterTensor& tensor : unit.tensors) {
        for (std::int64_t i = 0; i < tensor.slice.elements_of(tensor.slice.rank); ++i) {
          want.at(static_cast<std::size_t>(tensor.offset + i)) = static_cast<float>(
              tensor.slice.whole_offset + tensor.slice.whole_of(i, tensor.slice.rank));
        }
      }
      std::vector<float> got(want.size(), -1.0F);
      std::size_t size = 1;
      for (std::size_t at = 0; at < got.size(); at += size) {
        size = std::min(size * 7 % 1009 + 1, got.size() - at);
        state.read(StateField::kMaster, unit, static_cast<std::int64_t>(at),
                   std::span(got).subspan(at, size));
      }
      EXPECT_EQ(got, want);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, TensorSplits,
                         testing::Combine(testing::Values("llama", "gpt2", "qwen3", "gemma2",
                                                          "olmo2", "mixtral", "olmoe", "qwen3_moe"),
                                          testing::Bool()));

std::string refusal(const ModelConfig& model, std::int64_t rows, const TensorSplit& split) {
  try {
    check_tensor_split(model, rows, split);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(TensorSplit, RefusesWhatCannotBeDivided) {
  ModelConfig model = model_of("llama", true);
  EXPECT_EQ(refusal(model, 60, {.ranks = 3, .shares_rows = true}), "");
  EXPECT_THAT(refusal(model, 60, {.ranks = 4}), HasSubstr("6 heads"));
  EXPECT_THAT(refusal(model, 60, {.ranks = 6}), HasSubstr("3 key-value heads"));
  EXPECT_THAT(refusal(model, 61, {.ranks = 3, .shares_rows = true}),
              testing::AllOf(HasSubstr("61 rows"), HasSubstr("sequence_parallel on")));
  EXPECT_EQ(refusal(model, 61, {.ranks = 3, .shares_rows = false}), "");
  model.intermediate = 100;
  EXPECT_THAT(refusal(model, 60, {.ranks = 3}), HasSubstr("100 intermediate columns"));
  model = model_of("llama", true);
  model.vocabulary = 4;  // two rows each: none for the third
  EXPECT_THAT(refusal(model, 60, {.ranks = 3}), HasSubstr("vocabulary of 4"));
}

TEST(TensorSplit, DividesTheIntermediateOfEachExpert) {
  ModelConfig model = model_of("qwen3_moe", true);
  EXPECT_EQ(refusal(model, 60, {.ranks = 3}), "");
  EXPECT_EQ(config_of_part(model, {.ranks = 3}).experts.intermediate,
            model.experts.intermediate / 3);
  model.experts.intermediate = 25;
  EXPECT_THAT(refusal(model, 60, {.ranks = 3}),
              testing::AllOf(HasSubstr("25 intermediate columns in each expert"),
                             HasSubstr("ranks.shape.tensor 3")));
  model = model_of("qwen3_moe", true);
  model.intermediate = 100;  // of the second layer, which has no experts
  EXPECT_THAT(refusal(model, 60, {.ranks = 3}), HasSubstr("100 intermediate columns"));
  for (LayerOptions& layer : model.layer_options) layer.has_experts = true;
  EXPECT_EQ(refusal(model, 60, {.ranks = 3}), "");
}

// The sums over ranks are of neighbouring elements, weight decay applies to the first ones, and no
// padding is missing, whatever the other vectors of a block with a router are.
TEST(TensorSplit, ARouterLiesAmongTheMatrices) {
  for (const std::string_view family :
       {"mixtral", "olmoe", "qwen3_moe", "qwen2_moe", "granitemoe", "glm4_moe", "gpt_oss"}) {
    for (const bool shares_rows : {false, true}) {
      SCOPED_TRACE(fmt::format("{} {}", family, shares_rows));
      const TensorSplit split = {.ranks = 3, .shares_rows = shares_rows};
      const UnitLayout unit = parameter_layout(model_of(family, true), 2, split).at(1);
      const std::int64_t decayed = unit.decayed_elements();
      std::int64_t shares = 0;
      for (const ParameterTensor& tensor : unit.tensors) {
        if (is_of_expert(tensor.kind)) continue;
        const std::int64_t end = tensor.offset + tensor.elements();
        EXPECT_EQ(tensor.decay, end <= decayed) << tensor.name;
        const bool is_replicated =
            unit.replicated.begin <= tensor.offset && end <= unit.replicated.end;
        EXPECT_EQ(tensor.cut == TensorCut::kReplicated, is_replicated) << tensor.name;
        const bool is_share = tensor.gradient == GradientShare::kPart ||
                              tensor.gradient == GradientShare::kHeads ||
                              (tensor.gradient == GradientShare::kRows && shares_rows);
        EXPECT_EQ(is_share, unit.summed.begin <= tensor.offset && end <= unit.summed.end)
            << tensor.name;
        shares += is_share ? tensor.elements() : 0;
      }
      EXPECT_EQ(shares, unit.summed.end - unit.summed.begin);
      EXPECT_EQ(unit.replicated.begin % kBlockElements, 0);
      EXPECT_EQ(unit.replicated.end % kBlockElements, 0);
    }
  }
}

// The biases of down matrices have whole gradients on every rank. They must not lie between
// parameters of whose gradients a rank has a part, also where the router's weight is frozen.
TEST(TensorSplit, AddsUpNoWholeGradientWhereTheRouterIsFrozen) {
  ModelConfig model = model_of("gpt_oss", true);
  model.trainable = {"*bias*", "*norm*", "*sinks"};
  const TensorSplit split = {.ranks = 3, .shares_rows = true};
  const UnitLayout unit = parameter_layout(model, 2, split).at(1);
  EXPECT_FALSE(unit.find(ParameterKind::kRouter)->trainable);
  for (const ParameterKind kind :
       {ParameterKind::kExpertDownBias, ParameterKind::kExpertGateBias, ParameterKind::kSinks}) {
    const ParameterTensor& tensor = *unit.find(kind);
    EXPECT_TRUE(tensor.trainable);
    const bool is_outside =
        tensor.offset + tensor.elements() <= unit.summed.begin || unit.summed.end <= tensor.offset;
    EXPECT_TRUE(is_outside) << tensor.name;
  }
  const ParameterTensor& router = *unit.find(ParameterKind::kRouterBias);
  EXPECT_LE(unit.summed.begin, router.offset);
  EXPECT_LE(router.offset + router.elements(), unit.summed.end);
}

}  // namespace
}  // namespace terrace
