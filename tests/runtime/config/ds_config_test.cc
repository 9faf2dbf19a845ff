#include "runtime/config/ds_config.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "runtime/config/ds_config_keys.h"
#include "runtime/config/train_config.h"
#include "tests/runtime/temporary_directory.h"

// The options that a DeepSpeed configuration becomes.
namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class DsConfigFile : public testing::Test {
 protected:
  std::string write(const std::string& text) {
    const std::string path = directory_.path() + "/ds.json";
    std::ofstream(path) << text;
    return path;
  }

  TrainOptions parse(const std::string& text, std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"--model", "nano",        "--data",
                                          "x",       "--ds-config", write(text)};
    const bool ends = std::ranges::find(more, "--num-train-epochs") != more.end();
    if (!ends && text.find("total_num_steps") == std::string::npos) {
      arguments.insert(arguments.end(), {"--max-steps", "5"});
    }
    arguments.insert(arguments.end(), more.begin(), more.end());
    return parse_train_options(arguments);
  }

  std::string refusal(const std::string& text, std::vector<std::string> more = {}) {
    try {
      parse(text, std::move(more));
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "nothing was refused";
  }

  TemporaryDirectory directory_;
};

// Such files occur in tutorials of ZeRO-Infinity.
constexpr const char* kInfinity = R"({
  "train_batch_size": 64,  // over all ranks
  "train_micro_batch_size_per_gpu": 2,
  "gradient_clipping": 0.5,
  "steps_per_print": 10,
  "bf16": {"enabled": true},
  "optimizer": {"type": "AdamW",
                "params": {"lr": 2e-5, "betas": [0.8, 0.95], "eps": 1e-7, "weight_decay": 0.01}},
  "scheduler": {"type": "WarmupDecayLR",
                "params": {"warmup_max_lr": 1e-5, "warmup_num_steps": 100, "total_num_steps": 2e3,
                           "warmup_type": "linear"}},
  "zero_optimization": {
    "stage": 3,
    "offload_param": {"device": "nvme", "nvme_path": "/drive", "pin_memory": true},
    "offload_optimizer": {"device": "cpu"},
    "overlap_comm": true,
    "prefetch_bucket_size": 1e6,
    "stage3_max_live_parameters": 1e8
  },
  "activation_checkpointing": {"cpu_checkpointing": true},
  "aio": {"block_size": 262144, "thread_count": 4},
  "wandb": {"enabled": false, "team": "x"}
})";

TEST_F(DsConfigFile, SetsWhatItsKeysMean) {
  TrainOptions options = parse(kInfinity);
  EXPECT_EQ(options.batch.micro_batch_size, 2);
  EXPECT_EQ(options.batch.max_steps, 2000);
  EXPECT_EQ(options.optimizer.max_grad_norm, 0.5);
  EXPECT_EQ(options.run.log_every, 10);
  EXPECT_EQ(options.precision, Precision::kBf16);
  EXPECT_NEAR(options.optimizer.learning_rate, 1e-5, 1e-6 * 1e-5);
  EXPECT_EQ(options.optimizer.min_learning_rate, 0);
  EXPECT_EQ(options.optimizer.warmup_steps, 100);
  EXPECT_EQ(options.optimizer.lr_scheduler_type, LrSchedulerType::kLinear);
  EXPECT_NEAR(options.optimizer.weight_decay, 0.01, 1e-6 * 0.01);
  EXPECT_EQ(options.optimizer.value_of(0), 0.8);
  EXPECT_EQ(options.optimizer.value_of(1), 0.95);
  EXPECT_NEAR(options.optimizer.value_of(2), 1e-7, 1e-6 * 1e-7);
  EXPECT_EQ(options.step.zero_stage, 3);
  EXPECT_EQ(options.tiers.places[StateClass::kParameters], Placement::kNvme);
  EXPECT_EQ(options.tiers.places[StateClass::kOptimizer], Placement::kHost);
  EXPECT_EQ(options.tiers.places[StateClass::kActivations], Placement::kHost);
  ASSERT_EQ(options.tiers.nvme.size(), 1U);
  EXPECT_EQ(options.tiers.nvme.front().path, "/drive");
  settle_batch(options, 4);
  EXPECT_EQ(options.batch.gradient_accumulation_steps, 8);
}

TEST_F(DsConfigFile, SaysWhatHasNoEffect) {
  EXPECT_THAT(parse(kInfinity).run.notes,
              testing::UnorderedElementsAre(
                  HasSubstr("aio.block_size, aio.thread_count have no effect: the store chooses"),
                  HasSubstr("zero_optimization.prefetch_bucket_size, "
                            "zero_optimization.stage3_max_live_parameters have no effect: the plan "
                            "for the memory budgets decides what is fetched")));
  EXPECT_THAT(
      parse(R"({"bf16": {"enabled": "auto"}, "gradient_clipping": "auto"})").run.notes,
      ElementsAre(HasSubstr("\"auto\" leaves bf16.enabled, gradient_clipping to the flags")));
}

TEST_F(DsConfigFile, FlagsAndKeysOfTheConfigFileWin) {
  EXPECT_EQ(parse(kInfinity, {"--learning-rate", "3e-3"}).optimizer.learning_rate, 3e-3);
  EXPECT_EQ(parse(kInfinity, {"--num-train-epochs", "2"}).batch.max_steps, 0);
  const std::string toml = directory_.path() + "/run.toml";
  std::ofstream(toml) << "weight_decay = 0.25\n";
  EXPECT_EQ(parse(kInfinity, {"--config", toml}).optimizer.weight_decay, 0.25);
  const TrainOptions lion = parse(kInfinity, {"--optimizer", "lion"});
  EXPECT_EQ(lion.optimizer.rule->name, "lion");
  EXPECT_EQ(lion.optimizer.value_of(0), 0.9);
}

TEST_F(DsConfigFile, ItsDefaultsAreDeepSpeeds) {
  EXPECT_EQ(parse(R"({"bf16": {"enabled": 1}})").precision, Precision::kBf16);
  const TrainOptions adam = parse(R"({"optimizer": {"type": "Adam"}})");
  EXPECT_NEAR(adam.optimizer.learning_rate, 1e-3, 1e-6 * 1e-3);
  EXPECT_EQ(adam.optimizer.weight_decay, 0);
  EXPECT_EQ(adam.optimizer.value_of(1), 0.999);
  EXPECT_EQ(adam.precision, Precision::kFp32);
  const TrainOptions cosine = parse(R"({"scheduler": {"type": "WarmupCosineLR",
                "params": {"warmup_max_lr": 0.5, "warmup_num_steps": 2}}})");
  EXPECT_NEAR(*cosine.optimizer.min_learning_rate, 3e-8, 1e-12);  // of the flag's rate
  EXPECT_THAT(cosine.run.notes,
              testing::UnorderedElementsAre(HasSubstr("warmup_max_lr has no effect"),
                                            HasSubstr("the warm-up is linear")));
  EXPECT_EQ(parse(R"({"optimizer": {"type": "SGD"}})").optimizer.value_of(0), 0);
}

TEST_F(DsConfigFile, AutoLeavesEverySettingToTheFlags) {
  const TrainOptions usual =
      parse_train_options({"--model", "nano", "--data", "x", "--max-steps", "5"});
  const TrainOptions options = parse(R"({
    "bf16": {"enabled": "auto"}, "gradient_clipping": "auto", "train_batch_size": "auto",
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto",
                                              "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupCosineLR",
                  "params": {"warmup_num_steps": "auto", "warmup_type": "linear"}}})");
  EXPECT_EQ(options.optimizer.learning_rate, usual.optimizer.learning_rate);
  EXPECT_EQ(options.optimizer.weight_decay, usual.optimizer.weight_decay);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(options.optimizer.value_of(i), usual.optimizer.value_of(i));
  }
  EXPECT_EQ(options.optimizer.warmup_steps, usual.optimizer.warmup_steps);
  EXPECT_EQ(options.precision, usual.precision);
  EXPECT_FALSE(options.batch.global.has_value());
}

TEST_F(DsConfigFile, SettingsThatNothingUsesAreNamed) {
  EXPECT_THAT(parse(R"({"optimizer": {"params": {"lr": 1e-5}}})").run.notes,
              ElementsAre(HasSubstr("optimizer.params.lr has no effect")));
  EXPECT_THAT(
      parse(R"({"optimizer": {"type": "SGD", "params": {"betas": [0.9, 0.99]}}})").run.notes,
      ElementsAre(HasSubstr("optimizer.params.betas has no effect")));
  EXPECT_THAT(parse(R"({"zero_optimization": {"offload_param": {"device": "cpu",
                                                                "nvme_path": "/x"}}})")
                  .run.notes,
              ElementsAre(HasSubstr("nvme_path has no effect")));
}

TEST_F(DsConfigFile, QuantizedMovementIsCoded) {
  const StepOptions coded =
      parse(R"({"zero_optimization": {"stage": 3, "zero_quantized_weights": true,
                                      "zero_quantized_gradients": true}})")
          .step;
  EXPECT_EQ(coded.parameter_wire, WireForm::kInt8);
  EXPECT_EQ(coded.gradient_wire, WireForm::kInt4);
  EXPECT_TRUE(coded.keeps_errors());
}

TEST_F(DsConfigFile, SecondaryShardsAreIslands) {
  const auto step_of = [&](const char* zero) {
    return parse(fmt::format(R"({{"zero_optimization": {{"stage": 3, {}}}}})", zero)).step;
  };
  const StepOptions hpz = step_of(R"("zero_hpz_partition_size": 8, "mics_shard_size": -1)");
  EXPECT_EQ(hpz.zero_partition, ZeroPartition::kHpz);
  EXPECT_EQ(hpz.island_ranks, 8);
  const StepOptions mics = step_of(R"("zero_hpz_partition_size": 1, "mics_shard_size": 4)");
  EXPECT_EQ(mics.zero_partition, ZeroPartition::kHsdp);
  EXPECT_EQ(mics.island_ranks, 4);
  EXPECT_EQ(step_of(R"("zero_hpz_partition_size": 1)").zero_partition, ZeroPartition::kAll);
  EXPECT_THAT(
      refusal(R"({"zero_optimization": {"zero_hpz_partition_size": 2, "mics_shard_size": 2}})"),
      HasSubstr("zero_optimization.mics_shard_size"));
}

TEST_F(DsConfigFile, TheLeastRateOfACosineFollowsTheRateOfAFlag) {
  const char* const file = R"({"optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
      "scheduler": {"type": "WarmupCosineLR",
                    "params": {"cos_min_ratio": 0.1, "warmup_num_steps": 2}}})";
  EXPECT_NEAR(*parse(file).optimizer.min_learning_rate, 1e-4, 1e-10);
  const TrainOptions slower = parse(file, {"--learning-rate", "5e-5"});
  EXPECT_NEAR(*slower.optimizer.min_learning_rate, 5e-6, 1e-10);
  EXPECT_EQ(*parse(file, {"--min-learning-rate", "0"}).optimizer.min_learning_rate, 0);
}

TEST_F(DsConfigFile, ARunKeepsWhatItHasComeTo) {
  TrainOptions options = parse(kInfinity);
  settle_batch(options, 1);
  EXPECT_THAT(to_toml(options), HasSubstr("\ngradient_accumulation_steps = 32\n"));
  EXPECT_THAT(to_toml(options), HasSubstr("\nplace_parameters = \"nvme\"\n"));
}

TEST_F(DsConfigFile, BatchesThatDoNotComeOutAreRefused) {
  TrainOptions options = parse(R"({"train_batch_size": 6, "gradient_accumulation_steps": 2})");
  settle_batch(options, 3);
  EXPECT_EQ(options.batch.micro_batch_size, 1);
  options = parse(R"({"train_batch_size": 6})");
  settle_batch(options, 2);
  EXPECT_EQ(options.batch.micro_batch_size, 3);
  options = parse(R"({"train_batch_size": 6, "train_micro_batch_size_per_gpu": 4})");
  TERRACE_EXPECT_THROW_WITH(settle_batch(options, 1), ConfigError, "train_batch_size is 6");
  options = parse(R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4})",
                  {"--gradient-accumulation-steps", "3"});
  TERRACE_EXPECT_THROW_WITH(settle_batch(options, 1), ConfigError, "accumulation steps (3)");
}

TEST_F(DsConfigFile, WhatCannotBeMeantIsRefusedByName) {
  EXPECT_THAT(refusal("{"), HasSubstr("ds.json: "));
  EXPECT_THAT(refusal("[1]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(refusal(R"({"gradient_clipping": 1e999})"), HasSubstr("1e999"));
  EXPECT_THAT(refusal(R"({"bf16": true})"), HasSubstr("bf16 is an object, with keys like enabled"));
  EXPECT_THAT(refusal(R"({"bf16": {"enabled": "maybe"}})"),
              HasSubstr("bf16.enabled is \"maybe\"; give true or false"));
  EXPECT_THAT(refusal(R"({"bf16": {"enabled": true}, "fp16": {"enabled": true}})"),
              HasSubstr("enable only one of"));
  EXPECT_THAT(refusal(R"({"elasticity": {"enabled": "yes"}})"), HasSubstr("give true or false"));
  std::string deep;
  for (int level = 0; level < 200'000; ++level) deep += "{\"a\":";
  EXPECT_THAT(refusal(deep), HasSubstr("nested too deeply"));
  EXPECT_THAT(refusal(R"({"fp16": {"enabled": true, "enabled": false}})"),
              HasSubstr("enabled is given twice"));
  EXPECT_THAT(
      refusal(R"({"zero_optimization": {"stge": 2}})"),
      HasSubstr("unknown key zero_optimization.stge; did you mean zero_optimization.stage?"));
  EXPECT_THAT(refusal(R"({"zero_optimization": {"stage": 4}})"),
              HasSubstr("ds.json: zero_optimization.stage"));
  EXPECT_THAT(refusal(R"({"optimizer": {"type": "Lamb"}})"),
              HasSubstr("optimizer.type is \"Lamb\", which is not supported; choose Adam"));
  EXPECT_THAT(refusal(R"({"optimizer": {"type": "AdamW", "params": {"betas": 0.9}}})"),
              HasSubstr("give two numbers"));
  EXPECT_THAT(refusal(R"({"scheduler": {"type": "OneCycle"}})"), HasSubstr("choose WarmupLR"));
  EXPECT_THAT(refusal(R"({"zero_optimization": {"zero_quantized_nontrainable_weights": true}})"),
              HasSubstr("zero_quantized_nontrainable_weights is true, which is not supported"));
  EXPECT_THAT(refusal(R"({"elasticity": {"enabled": true}})"), HasSubstr("elasticity"));
  EXPECT_THAT(refusal("{}", {"--ds-config", "/nowhere.json"}), HasSubstr("ds-config"));
}

TEST_F(DsConfigFile, WhatIsAtItsUsualValueIsNotMentioned) {
  for (const DsKey& key : ds_keys()) {
    if (key.usual.empty()) continue;
    nlohmann::json value = nlohmann::json::parse(key.usual);
    std::string path(key.path);
    for (std::size_t dot = path.rfind('.'); dot != std::string::npos; dot = path.rfind('.')) {
      value = {{path.substr(dot + 1), value}};
      path.resize(dot);
    }
    EXPECT_THAT(parse(nlohmann::json{{path, value}}.dump()).run.notes, IsEmpty()) << key.path;
  }
}

TEST(DsKeys, HaveEachKeyOnceAndAReasonForWhatTheyRefuse) {
  std::set<std::string_view> paths;
  for (const DsKey& key : ds_keys()) {
    EXPECT_TRUE(paths.insert(key.path).second) << key.path;
    const bool is_said = key.effect == DsEffect::kNote || key.effect == DsEffect::kRefused;
    EXPECT_EQ(is_said, !key.why.empty()) << key.path;
  }
  for (const DsBlock& block : ds_blocks()) EXPECT_TRUE(paths.insert(block.path).second);
}

}  // namespace
}  // namespace terrace
