#include "runtime/config/unknown_flag.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "runtime/config/foreign_flags.h"
#include "runtime/config/thread_count.h"
#include "runtime/config/train_config.h"
#include "runtime/config/train_flags.h"
#include "runtime/model/model_config.h"
#include "runtime/train/sampler.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::Not;

std::vector<FlagSpec> train_specs() {
  std::vector<FlagSpec> specs;
  for (const TrainFlag& flag : train_flags()) specs.push_back(flag.spec);
  return specs;
}

std::string train_refusal(const std::vector<std::string>& arguments) {
  try {
    parse_train_options(arguments);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

struct Hint {
  std::string written;
  std::string says;
};

// Returns flags that people type who come from other programs, with the hints that they need.
std::vector<Hint> hints() {
  return {{"--eval-steps", "--eval-every: the same number of steps"},
          {"--eval_steps", "--eval-every: the same number of steps"},
          {"--save-steps", "--checkpoint-every: the same number of steps"},
          {"--logging-steps", "--log-every: the same number of steps"},
          {"--bf16", "--precision: bf16 is the default"},
          {"--fp16", "--precision: --precision fp16"},
          {"--lr", "--learning-rate: the same number"},
          {"--batch-size", "--micro-batch-size: samples of a micro-batch"},
          {"--per_device_train_batch_size", "--micro-batch-size: samples of a micro-batch"},
          {"--lr-warmup-fraction", "--warmup-ratio: the same number"},
          {"--num-epochs", "--num-train-epochs: the same number"},
          {"--output-dir", "--run-dir"},
          {"--model-name-or-path", "--model: a directory with config.json"},
          {"--seq-length", "--sequence-length: the same number"},
          {"--micro_batch_size", "it is spelled --micro-batch-size"},
          {"--global-batch-size", "--gradient-accumulation-steps: the global batch divided by"},
          {"--tensor-model-parallel-size", "--tensor-parallel: the same number"},
          {"--pipeline-model-parallel-size", "--pipeline-parallel: the same number"},
          {"--deepspeed", "here it is --ds-config: the same file"},
          {"--gradient-checkpointing", "--recompute: --recompute full"},
          {"--activation-checkpointing", "--recompute: --recompute full"},
          {"--save-interval", "--checkpoint-every: the same number"},
          {"--log-interval", "--log-every: the same number"},
          {"--train-iters", "--max-steps: the same number"},
          {"--training.steps", "--max-steps: the same number"},
          {"--training.seq_len", "--sequence-length: the same number"},
          {"--optimizer.lr", "--learning-rate: the same number"},
          {"--activation_checkpoint.mode", "--recompute: --recompute full"},
          {"--lr_scheduler.warmup_steps", "here it is called --warmup-steps"},
          {"--parallelism.tensor_parallel_degree", "--tensor-parallel: the same number"},
          {"--hidden-size", "--model: --model gives the sizes of the model"},
          {"--r", "--lora-rank: the same number"},
          {"--lora_target_modules", "--lora-targets: patterns of names"},
          {"--load_in_4bit", "--base-quantization: nf4"},
          {"--val_set_size", "--validation-fraction: a fraction of the data"},
          {"--cutoff_len", "--sequence-length: the same number"},
          {"--sample_packing", "--packing: documents (several in a sequence)"},
          {"--train_on_inputs", "--loss-on: completion (the default"},
          {"--base_model", "--model: a directory with config.json"},
          {"--push_to_hub", "leave it out: nothing is uploaded"},
          {"--flash_attn", "leave it out: attention never stores"},
          {"--report-to", "leave it out: the run directory contains metrics.jsonl"}};
}

TEST(UnknownFlag, OnesOfOtherProgramsAreTranslated) {
  for (const Hint& hint : hints()) {
    for (const auto& arguments : {std::vector<std::string>{hint.written, "5"},
                                  std::vector<std::string>{hint.written + "=5"}}) {
      const std::string error = train_refusal(arguments);
      EXPECT_THAT(error, HasSubstr(hint.written + ": unknown flag; "));
      EXPECT_THAT(error, HasSubstr(hint.says));
    }
  }
}

TEST(UnknownFlag, KeysOfAFileAreTranslatedToKeys) {
  const TemporaryDirectory directory;
  const auto error_in_file = [&](const std::string& key) {
    return train_refusal({"--config", directory.write("run.toml", key + " = 5\n")});
  };
  EXPECT_THAT(error_in_file("eval_steps"),
              HasSubstr("unknown key eval_steps; here it is eval_every: the same number of steps"));
  EXPECT_THAT(error_in_file("global_batch_size"), HasSubstr("gradient_accumulation_steps"));
  EXPECT_THAT(error_in_file("learning-rate"), HasSubstr("it is spelled learning_rate"));
  EXPECT_THAT(error_in_file("muon_momentum"), HasSubstr("muon_momentum is not built yet"));
  for (const char* const key : {"eval_steps", "fp16", "global_batch_size", "learning_rat"}) {
    EXPECT_THAT(error_in_file(key), Not(HasSubstr("--"))) << key;
  }
}

// Otherwise a hint would send people to a flag that does not exist, or say nothing of one that
// does.
TEST(UnknownFlag, EveryForeignNameLeadsToAFlagThatIsThere) {
  const std::vector<FlagSpec> specs = train_specs();
  std::set<std::string_view> names = {"config", "ds-config", "eval-samples"};
  for (const FlagSpec& spec : specs) names.insert(spec.name);
  std::set<std::string_view> foreign_names;
  for (const ForeignFlag& foreign : foreign_flags()) {
    EXPECT_TRUE(foreign.ours.empty() || names.contains(foreign.ours)) << foreign.name;
    EXPECT_FALSE(names.contains(foreign.name)) << foreign.name;
    EXPECT_TRUE(foreign_names.insert(foreign.name).second) << foreign.name << " is there twice";
    EXPECT_FALSE(foreign.how.empty()) << foreign.name;
  }
}

TEST(UnknownFlag, TheSamplerTranslatesFlagsOfProgramsThatGenerate) {
  const std::vector<FlagSpec> specs = {{"max-new-tokens", "Text", "N", "Tokens"},
                                       {"temperature", "Choice", "T", "Spread"}};
  EXPECT_THAT(unknown_flag_error("--max_length", specs).what(),
              HasSubstr("here it is --max-new-tokens: the largest number of tokens to add"));
  EXPECT_THAT(unknown_flag_error("--temp", specs).what(), HasSubstr("here it is --temperature"));
  EXPECT_THAT(unknown_flag_error("--num-beams", specs).what(), HasSubstr("leave it out"));
  std::set<std::string_view> names;
  for (const ForeignFlag& foreign : foreign_sample_flags()) {
    EXPECT_TRUE(names.insert(foreign.name).second) << foreign.name << " is there twice";
    EXPECT_FALSE(foreign.how.empty()) << foreign.name;
  }
}

TEST(UnknownFlag, WhatTheInterfaceHasAndIsNotBuiltSaysSo) {
  const std::string help = train_help();
  const std::size_t unbuilt = help.find("\nNot built yet (exit 2):\n");
  ASSERT_NE(unbuilt, std::string::npos);
  for (const std::string flag : {"--muon-momentum"}) {
    EXPECT_THAT(train_refusal({flag, "5"}), HasSubstr(flag + " is not built yet"));
    EXPECT_NE(help.find("\n  " + flag + " ", unbuilt), std::string::npos) << flag;
  }
  EXPECT_THAT(help, testing::ContainsRegex("muon[^\n]*\n? *[^\n]*not built yet"));
}

// Another command has neither the flags nor the hints of training.
TEST(UnknownFlag, OtherCommandsHaveTheirOwnNames) {
  const std::vector<FlagSpec> specs = {{"nvme", "Drives", "DIR", "A directory"}};
  EXPECT_THAT(unknown_flag_error("--nvme-path", specs).what(), HasSubstr("did you mean --nvme?"));
  EXPECT_THAT(unknown_flag_error("--muon-momentum", specs).what(), HasSubstr("unknown flag"));
  EXPECT_EQ(unbuilt_flags_help(specs), "");
  EXPECT_THAT(unknown_flag_error("--max-steps", specs).what(),
              HasSubstr("--max-steps is a flag of terrace train"));
  EXPECT_THAT(unknown_flag_error("--max_steps", specs).what(),
              HasSubstr("--max-steps is a flag of terrace train"));
}

TEST(ThreadsFlag, RefusesMoreThanAreRun) {
  EXPECT_THAT(
      train_refusal({"--model", "nano", "--data", "x", "--max-steps", "1", "--threads", "1000000"}),
      HasSubstr("here a process computes with at most"));
  EXPECT_GE(most_threads(), 256);
}

TEST(HubName, SaysThatNothingIsDownloaded) {
  const auto error_for = [](const std::string& model) {
    try {
      load_model_config(model);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const std::string error = error_for("meta-llama/Llama-3.2-1B");
  EXPECT_THAT(error, HasSubstr("nothing is downloaded"));
  EXPECT_THAT(error, HasSubstr("hf download meta-llama/Llama-3.2-1B --local-dir DIR"));
  EXPECT_THAT(error, HasSubstr("--model DIR"));
  SilentLog log;
  SampleOptions sample;
  sample.source.directory = "meta-llama/Llama-3.2-1B";
  sample.prompt = "x";
  const auto say_nothing = [](std::string_view) {};
  TERRACE_EXPECT_THROW_WITH(sample_text(sample, say_nothing, log), ConfigError,
                            "nothing is downloaded");
  for (const char* const path : {"/models/llama", "./models/llama", "../llama", "a/b/c"}) {
    EXPECT_THAT(error_for(path), HasSubstr("there is no such directory")) << path;
  }
  EXPECT_THAT(error_for("lama-8b"),
              HasSubstr("neither a directory with a config.json nor a preset"));
}

}  // namespace
}  // namespace terrace
