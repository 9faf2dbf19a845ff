#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <limits>

#include "tests/e2e/tiny_training.h"

// Runs that start from the weights of a Hugging Face directory.
namespace terrace {
namespace {

using testing::HasSubstr;
using testing::Not;

class StartFromWeights : public testing::Test {
 protected:
  StartFromWeights() { training_.train("first", {"--max-steps", "1", "--precision", "fp32"}); }

  // Returns the flags of a run that starts from them.
  Arguments flags(const std::string& steps = "1") const {
    return {"--max-steps", steps, "--model", training_.path("first/final"), "--init", "auto"};
  }
  Arguments command(const std::string& run = "run") const {
    return training_.command(run, flags());
  }
  std::string path(const std::string& name) const { return training_.path("first/final/" + name); }
  // Puts a key in front of the others of config.json.
  void add_key(const std::string& key) const {
    std::string config = training_.directory().read("first/final/config.json");
    config.insert(config.find('{') + 1, key + ",");
    training_.directory().write("first/final/config.json", config);
  }

  const TinyTraining training_;
};

TEST_F(StartFromWeights, OfBytesIsNothingToWarnOf) {
  const Outcome outcome = run_program(command());
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_THAT(outcome.output, HasSubstr("starts from the weights in"));
  EXPECT_EQ(outcome.errors, "");
}

// Bytes are not the ids that the weights were trained with.
TEST_F(StartFromWeights, WithATokenizerOfTheirOwnWarnsOfText) {
  training_.directory().write("first/final/tokenizer.json", "{}");
  const Outcome outcome = run_program(command() + Arguments{"--tokenizer", "bytes"});
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("tokenizer.json"));
  EXPECT_THAT(outcome.errors, HasSubstr("--data-format llmc"));
  EXPECT_EQ(run_program(command("other")).code, 5);  // an empty tokenizer.json is none
  const Arguments sample = {
      "sample", "--model", training_.path("first/final"), "--prompt", "a", "--max-new-tokens", "1"};
  const Outcome sampled = run_program(sample + Arguments{"--tokenizer", "bytes"});
  EXPECT_EQ(sampled.code, 0) << sampled;
  EXPECT_THAT(sampled.errors, HasSubstr("tokenizer.json"));
  EXPECT_EQ(run_program(sample).code, 5);  // an empty tokenizer.json is none
  const std::string tokens = training_.directory().write("ids.u16", std::string(20'000, '\0'));
  const Outcome of_ids =
      run_program(command("of_ids") + Arguments{"--data", tokens, "--data-format", "raw-u16"});
  EXPECT_EQ(of_ids.code, 0) << of_ids;
  EXPECT_THAT(of_ids.errors, Not(HasSubstr("tokenizer.json")));
  EXPECT_FALSE(training_.directory().has("run/final/tokenizer.json"));
  EXPECT_EQ(training_.directory().read("of_ids/final/tokenizer.json"), "{}");
}

// The run goes on without the files that only its users need.
TEST_F(StartFromWeights, WithATokenizerThatCannotBeReadSaysSo) {
  std::filesystem::create_directory(training_.path("first/final/merges.txt"));
  const std::string tokens = training_.directory().write("ids.u16", std::string(20'000, '\0'));
  const Outcome outcome =
      run_program(command() + Arguments{"--data", tokens, "--data-format", "raw-u16"});
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("merges.txt"));
  EXPECT_TRUE(training_.directory().has("run/final/config.json"));
}

TEST_F(StartFromWeights, WithDropoutSaysThatThereIsNone) {
  add_key("\"attention_dropout\": 0.25");
  const Outcome outcome = run_program(command());
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_THAT(outcome.errors,
              HasSubstr("attention_dropout 0.25: the model is trained without this dropout"));
}

// Otherwise the first step would fail, with advice about the learning rate.
TEST_F(StartFromWeights, ThatAreNotFiniteIs5AndNamesTheTensor) {
  std::string bytes = training_.directory().read("first/final/model.safetensors");
  const float infinite = std::numeric_limits<float>::infinity();
  std::memcpy(bytes.data() + bytes.size() - sizeof(infinite), &infinite, sizeof(infinite));
  training_.directory().write("first/final/model.safetensors", bytes);
  const Outcome outcome = run_program(command());
  EXPECT_EQ(outcome.code, 5) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("model.norm.weight"));
  EXPECT_THAT(outcome.errors, HasSubstr("not finite"));
}

// Random weights in their place would train without a word.
TEST_F(StartFromWeights, ThatAreNotThereIs2AndNamesWhatIs) {
  std::filesystem::rename(path("model.safetensors"), path("model.fp16.safetensors"));
  for (const Arguments& more : {Arguments{}, Arguments{"--dry-run"}}) {
    const Outcome outcome = run_program(command() + more);
    EXPECT_EQ(outcome.code, 2) << outcome;
    EXPECT_THAT(outcome.errors, HasSubstr("model.fp16.safetensors"));
    EXPECT_THAT(outcome.errors, HasSubstr("--init random"));
    EXPECT_FALSE(training_.directory().has("run"));
  }
  const Outcome sampled = run_program({"sample", "--model", path(""), "--prompt", "a"});
  EXPECT_EQ(sampled.code, 2) << sampled;
  EXPECT_THAT(sampled.errors, HasSubstr("model.fp16.safetensors"));
  std::filesystem::remove(path("model.fp16.safetensors"));
  const Outcome bare = run_program(command());
  EXPECT_EQ(bare.code, 2) << bare;
  EXPECT_THAT(bare.errors, HasSubstr("--init random"));
}

// Rounding an F32 model to bf16 changes it by more than a small learning rate does.
TEST_F(StartFromWeights, KeepsTheirPrecisionUnlessToldOtherwise) {
  const Arguments still = {"--learning-rate", "1e-30", "--weight-decay", "0"};
  training_.train("kept", flags() + still);
  EXPECT_TRUE(training_.files("kept", "final") == training_.files("first", "final"));
  struct Type {
    const char* flag;
    const char* in_config;
    const char* in_file;
  };
  for (const auto& [flag, in_config, in_file] :
       {Type{"bf16", "bfloat16", "BF16"}, Type{"float16", "float16", "F16"},
        Type{"fp32", "float32", "F32"}}) {
    training_.train(flag, flags() + Arguments{"--save-dtype", flag});
    const auto files = training_.files(flag, "final");
    EXPECT_THAT(files.at("config.json"), HasSubstr(fmt::format("\"{}\"", in_config)));
    EXPECT_THAT(files.at("model.safetensors").substr(0, 4000),
                HasSubstr(fmt::format("\"dtype\":\"{}\"", in_file)));
    const Outcome sampled =
        run_program({"sample", "--model", training_.path(std::string(flag) + "/final"), "--prompt",
                     "a", "--max-new-tokens", "1"});
    EXPECT_EQ(sampled.code, 0) << sampled;
  }
}

// The checkpoint records how the weights were stored, as they may be gone.
TEST_F(StartFromWeights, KeepsTheirPrecisionAcrossAResume) {
  training_.train("whole", flags("2"));
  training_.train("parts", flags("2") + Arguments{"--stop-after-step", "1"});
  std::filesystem::remove(path("model.safetensors"));
  training_.train("parts", flags("2") + Arguments{"--resume", "auto"});
  training_.expect_same("parts", "whole", "final");
}

TEST_F(StartFromWeights, AResultOfAnotherTypeIsAnotherRun) {
  training_.train("run", flags());
  const Outcome outcome =
      run_program(command() + Arguments{"--save-dtype", "bf16", "--resume", "auto"});
  EXPECT_EQ(outcome.code, 2) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("save_dtype"));
}

TEST_F(StartFromWeights, CopiesLicencesAndCodeToTheResult) {
  for (const char* name : {"LICENSE", "modeling_own.py", "vocab.json", "notes.bin"}) {
    training_.directory().write(std::string("first/final/") + name, name);
  }
  training_.train("run", flags() + Arguments{"--tokenizer", "bytes"});
  EXPECT_EQ(training_.directory().read("run/final/LICENSE"), "LICENSE");
  EXPECT_EQ(training_.directory().read("run/final/modeling_own.py"), "modeling_own.py");
  EXPECT_FALSE(training_.directory().has("run/final/vocab.json"));  // trained on bytes
  EXPECT_FALSE(training_.directory().has("run/final/notes.bin"));
}

TEST_F(StartFromWeights, WithAKeyThatIsNotKnownNeedTheFlagThatSaysItIsHarmless) {
  add_key("\"odd_scale\": Infinity");
  const Outcome refused = run_program(command());
  EXPECT_EQ(refused.code, 2) << refused;
  EXPECT_THAT(refused.errors, HasSubstr("odd_scale Infinity may change"));
  const Arguments flag = {"--ignore-config-keys", "odd_scale"};
  training_.train("run", flags("2") + flag + Arguments{"--stop-after-step", "1"});
  EXPECT_THAT(training_.directory().read("run/config.toml"),
              HasSubstr("ignore_config_keys = [\"odd_scale\"]"));
  const Outcome resumed = run_program({"train", "--config", training_.path("run/config.toml"),
                                       "--resume", "auto", "--stop-after-step", "0"});
  EXPECT_EQ(resumed.code, 0) << resumed;
  EXPECT_THAT(training_.directory().read("run/final/config.json"),
              HasSubstr("\"odd_scale\": Infinity"));
  const Arguments sample = {
      "sample", "--model", training_.path("run/final"), "--prompt", "a", "--max-new-tokens", "1"};
  EXPECT_EQ(run_program(sample).code, 2);
  EXPECT_EQ(run_program(sample + flag).code, 0);
  Arguments of_checkpoint = sample;
  of_checkpoint[2] = training_.path("run/checkpoint-1");
  EXPECT_EQ(run_program(of_checkpoint).code, 0);
}

// Rotary embeddings have no table that ends.
TEST_F(StartFromWeights, MayBeTrainedOnLongerSamplesThanTheyWereMadeFor) {
  const Outcome outcome = run_program(command() + Arguments{"--sequence-length", "48"});
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("--sequence-length 48 is more than the 32 positions"));
  const TinyTraining learned(gpt2_config());
  const Outcome refused =
      run_program(learned.command("run", {"--max-steps", "1", "--sequence-length", "48"}));
  EXPECT_EQ(refused.code, 2) << refused;
  EXPECT_THAT(refused.errors, HasSubstr("more than the 32 positions"));
}

}  // namespace
}  // namespace terrace
