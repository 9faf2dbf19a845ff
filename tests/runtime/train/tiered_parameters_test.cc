#include "runtime/train/tiered_parameters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "runtime/model/state_source.h"
#include "runtime/train/held_parameters.h"
#include "runtime/train/token_sampler.h"
#include "tests/runtime/temporary_directory.h"
#include "tests/runtime/train/sampled_models.h"

namespace terrace {
namespace {

// Returns a model of four blocks. Most tests set a memory budget into which only some of them fit.
ModelConfig layered_model(bool tied) {
  return parse_model_config(R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 1500,
    "max_position_embeddings": 64, "initializer_range": 0.1, "tie_word_embeddings": )" +
                                std::string(tied ? "true" : "false") + "}",
                            "test");
}

// Returns a model of four blocks, of which the second has no experts.
ModelConfig model_of_experts(bool tied) {
  return parse_model_config(R"({"model_type": "qwen3_moe", "num_hidden_layers": 4,
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 96, "moe_intermediate_size": 64, "num_experts": 16,
    "num_experts_per_tok": 2, "mlp_only_layers": [1], "vocab_size": 1500,
    "max_position_embeddings": 64, "initializer_range": 0.1, "tie_word_embeddings": )" +
                                std::string(tied ? "true" : "false") + "}",
                            "test");
}

std::vector<std::int32_t> mixed_text(std::int64_t length) {
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < length; ++i) {
    ids.push_back(static_cast<std::int32_t>((i * 37 + i * i * 5 + 3) % 256));
  }
  return ids;
}

// A model whose parameters pass through a limited budget of memory.
class TieredModel {
 public:
  TieredModel(const ModelConfig& config, DType type, std::int64_t positions) : config_(config) {
    shape = {.config = config, .compute_type = type, .positions = positions, .threads = 2};
    shape.rows_of_pass = positions;
    shape.reads_experts = config.experts.count > 0;
    const TokenSampler::Memory beside = TokenSampler::memory_beside(shape);
    options = {.name = config.name,
               .layout = frozen_layout(config),
               .tied = config.tied,
               .reads_experts = shape.reads_experts,
               .type = type,
               .tiers = {},
               .threads = 2,
               .key_value_bytes = beside.key_values,
               .computation_bytes = beside.computation};
    options.tiers.nvme = {{drive_.path(""), std::nullopt}};
    options.tiers.places[StateClass::kParameters] = Placement::kNvme;
    options.tiers.io_engine = IoEngineKind::kPosix;
  }

  std::unique_ptr<TieredParameters> make() const {
    SilentLog log;
    return std::make_unique<TieredParameters>(options, log);
  }
  // Returns the smallest host budget that is accepted, to within 4 KiB.
  std::size_t least_budget() {
    std::size_t fails = 0;
    std::size_t passes = std::size_t{1} << 28;
    while (passes - fails > 4096) {
      options.tiers.host_memory = fails + (passes - fails) / 2;
      (accepts() ? passes : fails) = *options.tiers.host_memory;
    }
    return passes;
  }
  std::size_t bytes_of_unit(std::size_t unit) const {
    return static_cast<std::size_t>(options.layout.at(unit).padded_elements) *
           size_of(options.type);
  }
  std::size_t bytes_of_all() const {
    return HeldParameters::memory_bytes(options.layout, options.type);
  }
  std::unique_ptr<TokenSampler> sampler(std::unique_ptr<TieredParameters> parameters) const {
    parameters->fill([&](StateField, std::int32_t unit, std::int64_t begin, std::span<float> out) {
      const UnitLayout& layout = options.layout.at(static_cast<std::size_t>(unit));
      for_each_tensor_part(
          layout, begin, out,
          [&](const ParameterTensor& tensor, std::int64_t first, std::span<float> part) {
            kFetchInitial(layout, tensor, first, part);
          });
    });
    return std::make_unique<TokenSampler>(std::move(parameters), shape);
  }
  // Expects the same logits as from a model that is held in memory: for a prompt, which is computed
  // in one pass, and then for one token after another.
  void expect_logits_of_memory(TokenSampler& tiered, std::int64_t prompt) const {
    TokenSampler::Shape whole = shape;
    whole.reads_experts = false;
    TokenSampler held(whole, kFetchInitial);
    for (std::int64_t length = prompt; length <= shape.positions; ++length) {
      const auto ids = mixed_text(length);
      const auto wanted = held.logits_after(ids);
      const auto found = tiered.logits_after(ids);
      ASSERT_TRUE(std::ranges::equal(found, wanted)) << config_.name << " " << length;
    }
  }

  TieredParameters::Options options;
  TokenSampler::Shape shape;

 private:
  bool accepts() const {
    try {
      make();
      return true;
    } catch (const OutOfMemory&) {
      return false;
    }
  }

  TemporaryDirectory drive_;
  ModelConfig config_;
};

TEST(TieredParameters, LogitsAreThoseOfAModelInMemory) {
  for (const DType type : {DType::kBF16, DType::kF32}) {
    for (const ModelConfig& config :
         {layered_model(false), layered_model(true), small_model(true), rotated_model(kDynamic)}) {
      TieredModel model(config, type, 24);
      model.shape.rope_of_text = true;
      model.options.tiers.host_memory = model.least_budget();
      const auto sampler = model.sampler(model.make());
      model.expect_logits_of_memory(*sampler, 17);
    }
  }
}

// All parts of a long prompt are computed with one unit before the next unit is fetched.
TEST(TieredParameters, ALongPromptIsOnePass) {
  TieredModel model(layered_model(false), DType::kF32, 1100);
  const auto sampler = model.sampler(model.make());
  model.expect_logits_of_memory(*sampler, 1098);
}

TEST(TieredParameters, APassReadsEachParameterOnce) {
  for (const bool tied : {false, true}) {
    TieredModel model(layered_model(tied), DType::kF32, 16);
    for (const std::size_t budget : {model.least_budget(), model.least_budget() + 100'000}) {
      model.options.tiers.host_memory = budget;
      EXPECT_EQ(model.make()->bytes_read(), model.bytes_of_all()) << tied << budget;
    }
  }
}

TEST(TieredExperts, LogitsAreThoseOfAModelInMemory) {
  for (const bool tied : {false, true}) {
    for (const DType type : {DType::kBF16, DType::kF32}) {
      TieredModel model(model_of_experts(tied), type, 24);
      model.options.tiers.host_memory = model.least_budget();
      const auto sampler = model.sampler(model.make());
      model.expect_logits_of_memory(*sampler, 17);
    }
  }
}

// Pieces of a prompt share what they read.
TEST(TieredExperts, ALongPromptIsOnePass) {
  TieredModel model(model_of_experts(false), DType::kBF16, 1100);
  auto parameters = model.make();
  const TieredParameters& tiered = *parameters;
  const auto sampler = model.sampler(std::move(parameters));
  model.expect_logits_of_memory(*sampler, 1100);
  const auto ids = mixed_text(1100);
  const std::set<std::int32_t> rows(ids.begin(), ids.end());
  const std::size_t embedding = model.bytes_of_unit(0);  // it is less than a block of the drive
  EXPECT_LE(tiered.bytes_read(), model.bytes_of_all() - embedding + rows.size() * embedding);
}

TEST(TieredExperts, ATokenReadsTheExpertsThatItHasChosen) {
  for (const bool tied : {false, true}) {
    TieredModel model(model_of_experts(tied), DType::kF32, 24);
    auto parameters = model.make();
    const TieredParameters& tiered = *parameters;
    const auto sampler = model.sampler(std::move(parameters));
    std::size_t shared = 0;
    for (const UnitLayout& unit : model.options.layout) {
      if (unit.index > 0 || tied) shared += static_cast<std::size_t>(unit.shared_elements()) * 4;
    }
    const ExpertLayout& experts = model.options.layout.at(1).experts;
    const std::size_t of_expert = static_cast<std::size_t>(experts.elements) * 4;
    constexpr std::size_t kLayers = 3;                          // with experts
    const std::size_t row = tied ? 0 : model.bytes_of_unit(0);  // less than a block of the drive
    sampler->logits_after(mixed_text(16));
    for (std::int64_t length = 17; length <= 24; ++length) {
      sampler->logits_after(mixed_text(length));
      EXPECT_EQ(tiered.bytes_read(), shared + kLayers * 2 * of_expert + row) << tied;
    }
  }
}

// Experts and an embedding may stay in memory, too.
TEST(TieredExperts, AutoReadsNothingWhereAllFits) {
  TieredModel model(model_of_experts(false), DType::kF32, 16);
  model.options.tiers.places[StateClass::kParameters] = Placement::kAuto;
  model.options.tiers.host_memory = model.least_budget() + 2 * model.bytes_of_all();
  auto parameters = model.make();
  const TieredParameters& tiered = *parameters;
  const auto sampler = model.sampler(std::move(parameters));
  model.expect_logits_of_memory(*sampler, 12);
  EXPECT_EQ(tiered.bytes_read(), 0U);
}

// Parameters stay in memory as far as there is room. A tied embedding is the first to stay.
TEST(TieredParameters, AutoKeepsWhatFits) {
  TieredModel model(layered_model(true), DType::kF32, 16);
  model.options.tiers.places[StateClass::kParameters] = Placement::kAuto;
  model.options.tiers.host_memory = model.least_budget();
  EXPECT_LE(model.make()->bytes_read(), model.bytes_of_all() - model.bytes_of_unit(0));
  model.options.tiers.host_memory = *model.options.tiers.host_memory + model.bytes_of_all();
  EXPECT_EQ(model.make()->bytes_read(), 0U);
}

TEST(TieredParameters, TheLedgerIsWithinTheBudget) {
  TieredModel model(layered_model(false), DType::kF32, 600);
  model.options.tiers.host_memory = model.least_budget();
  const Ledger ledger = model.make()->ledger();
  EXPECT_EQ(ledger[Tier::kHost].budget_bytes, model.options.tiers.host_memory);
  EXPECT_LE(ledger[Tier::kHost].peak_bytes, *model.options.tiers.host_memory);
  EXPECT_EQ(ledger[Tier::kHost][Account::kActivations],
            TokenSampler::memory_beside(model.shape).total());
  EXPECT_GE(ledger[Tier::kNvme].peak_bytes, model.bytes_of_all());
}

TEST(TieredParameters, ABudgetBelowTwoUnitsIsRefused) {
  TieredModel model(layered_model(false), DType::kF32, 16);
  const std::size_t beside = TokenSampler::memory_beside(model.shape).total();
  const std::size_t embedding_and_block = model.bytes_of_unit(0) + model.bytes_of_unit(1);
  EXPECT_GE(model.least_budget(), beside + embedding_and_block);
  model.options.tiers.host_memory = beside + embedding_and_block - 1;
  TERRACE_EXPECT_THROW_WITH(model.make(), OutOfMemory, "host needs");
  TERRACE_EXPECT_THROW_WITH(model.make(), OutOfMemory, "raise --host-memory to ");
  model.options.tiers.nvme.clear();
  model.options.tiers.places[StateClass::kParameters] = Placement::kAuto;
  model.options.tiers.host_memory = beside + model.bytes_of_all() - 1;
  TERRACE_EXPECT_THROW_WITH(model.make(), OutOfMemory, "give --nvme DIR");
}

TEST(TieredParameters, ADriveThatIsTooSmallIsRefused) {
  TieredModel model(layered_model(false), DType::kF32, 16);
  model.options.tiers.nvme.front().budget_bytes = model.bytes_of_all() / 2;
  TERRACE_EXPECT_THROW_WITH(model.make(), OutOfMemory, "nvme needs");
}

}  // namespace
}  // namespace terrace
