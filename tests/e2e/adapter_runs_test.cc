#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/e2e/tiny_training.h"

// Runs that train an adapter: the files that they save, the state that they go on from, and the
// flags that are refused.
namespace terrace {
namespace {

using testing::HasSubstr;

class AdapterRuns : public testing::Test {
 protected:
  AdapterRuns() : training_(3) {
    training_.train("base", {"--max-steps", "2", "--precision", "fp32"});
  }

  Arguments from_base(const Arguments& more) const {
    return Arguments{"--model",         training_.path("base/final"),
                     "--init",          "weights",
                     "--max-steps",     "6",
                     "--learning-rate", "0.01"} +
           more;
  }
  Arguments adapted(const Arguments& more = {}) const {
    return from_base(Arguments{"--lora-rank", "4", "--lora-targets", "q_proj", "down_proj"} + more);
  }
  Outcome run(const std::string& name, const Arguments& more) const {
    return run_program(training_.command(name, more));
  }
  nlohmann::json read_json(const std::string& name) const {
    return nlohmann::json::parse(training_.directory().read(name));
  }
  void expect_refused(const Arguments& more, const std::string& why) const {
    const Outcome outcome = run("refused", more);
    EXPECT_EQ(outcome.code, 2) << outcome;
    EXPECT_THAT(outcome.errors, HasSubstr(why));
  }

  const TinyTraining training_;
};

TEST_F(AdapterRuns, LeaveAnAdapterWhateverTheTiers) {
  training_.train("run", adapted());
  training_.train("everywhere", adapted(training_.nvme() + Arguments{"--place-parameters", "nvme",
                                                                     "--place-optimizer", "nvme",
                                                                     "--recompute", "full"}));
  training_.expect_same("run", "everywhere", "final");
  EXPECT_EQ(training_.files("run", "final").size(), 2U);
  const auto config = read_json("run/final/adapter_config.json");
  EXPECT_EQ(config["base_model_name_or_path"], training_.path("base/final"));
  EXPECT_EQ(config["r"], 4);
  EXPECT_EQ(config["lora_alpha"], 8);
  EXPECT_EQ(config["target_modules"], nlohmann::json({"down_proj", "q_proj"}));
}

// Magnitudes are saved, resumed, trained further, merged and sampled like the matrices.
TEST_F(AdapterRuns, WithMagnitudesDoAllThatOthersDo) {
  const Arguments dora = adapted({"--lora-type", "dora", "--precision", "fp32"});
  training_.train("alone", dora);
  EXPECT_EQ(read_json("alone/final/adapter_config.json")["use_dora"], true);
  EXPECT_THAT(training_.files("alone", "final").at("adapter_model.safetensors"),
              HasSubstr("q_proj.lora_magnitude_vector\""));
  training_.train("plain", adapted({"--precision", "fp32"}));
  EXPECT_NEAR(training_.rows("alone").front().columns.at("loss"),
              training_.rows("plain").front().columns.at("loss"), 1e-5);
  EXPECT_NE(training_.rows("alone").back(), training_.rows("plain").back());
  training_.train("run", dora + Arguments{"--stop-after-step", "3"});
  const Outcome other = run(
      "other", adapted({"--precision", "fp32", "--resume", training_.path("run/checkpoint-3")}));
  EXPECT_EQ(other.code, 2) << other;
  EXPECT_THAT(other.errors, HasSubstr("with magnitudes (dora)"));
  training_.train(
      "run", dora + training_.nvme() + Arguments{"--resume", "auto", "--place-parameters", "nvme"});
  training_.expect_same("run", "alone", "final");
  const std::string adapter = training_.path("alone/final");
  training_.train("more", from_base({"--adapter", adapter, "--precision", "fp32"}));
  EXPECT_LT(training_.rows("more").front().columns.at("loss"),
            training_.rows("alone").front().columns.at("loss"));
  expect_refused(from_base({"--adapter", adapter, "--lora-type", "lora"}), "--lora-type lora");
  const auto merged =
      run_program({"merge", training_.path("base/final"), adapter, training_.path("merged")});
  EXPECT_EQ(merged.code, 0) << merged;
  std::vector<std::string> texts;
  for (const char* name : {"alone/final", "merged"}) {
    const Outcome sampled = run_program({"sample", "--model", training_.path(name), "--prompt",
                                         "the ", "--max-new-tokens", "12", "--temperature", "0"});
    EXPECT_EQ(sampled.code, 0) << sampled;
    texts.push_back(sampled.output);
  }
  EXPECT_EQ(texts[1], texts[0]);
}

// B is zero at the start, so the first loss is the base's.
TEST_F(AdapterRuns, BeginWithTheLossOfTheirBase) {
  training_.train("run", adapted());
  training_.train("plain", from_base({"--trainable", "*.0.*"}));
  EXPECT_EQ(training_.rows("run").front().columns.at("loss"),
            training_.rows("plain").front().columns.at("loss"));
}

TEST_F(AdapterRuns, GoOnFromCheckpointsThatHaveTheAdapterAlone) {
  training_.train("alone", adapted());
  training_.train("run", adapted({"--stop-after-step", "3"}));
  const auto saved = read_json("run/checkpoint-3/manifest.json");
  EXPECT_EQ(saved["frozen"]["directory"], training_.path("base/final"));
  EXPECT_EQ(saved["adapter"]["rank"], 4);
  std::uintmax_t bytes = 0;
  for (const auto& [name, content] : training_.files("run", "checkpoint-3")) {
    if (name.ends_with(".safetensors")) bytes += content.size();
    EXPECT_THAT(content, testing::Not(HasSubstr("embed_tokens.weight\":{")));
  }
  const std::uintmax_t of_base =
      std::filesystem::file_size(training_.path("base/final/model.safetensors"));
  EXPECT_LT(bytes, of_base);  // although each of its numbers is there three times
  training_.train("run", adapted({"--resume", "auto"}));
  training_.expect_same("run", "alone", "final");
  const Outcome other =
      run("other", from_base({"--lora-rank", "4", "--resume", training_.path("run/checkpoint-3")}));
  EXPECT_EQ(other.code, 2) << other;
  EXPECT_THAT(other.errors, HasSubstr("differs from the adapter of the checkpoint"));
  const Outcome none = run("none", from_base({"--resume", training_.path("run/checkpoint-3")}));
  EXPECT_EQ(none.code, 2) << none;
  EXPECT_THAT(none.errors,
              HasSubstr("the adapter (none) differs from the adapter of the checkpoint"));
}

// The state of the optimizer is new, and the matrices are the saved ones.
TEST_F(AdapterRuns, GoOnFromAnAdapter) {
  training_.train("first", adapted());
  const std::string adapter = training_.path("first/final");
  training_.train("more", from_base({"--adapter", adapter}));
  const auto first = training_.rows("first");
  const auto more = training_.rows("more");
  EXPECT_LT(more.front().columns.at("loss"), first.front().columns.at("loss"));
  EXPECT_EQ(training_.files("more", "final").at("adapter_config.json"),
            training_.files("first", "final").at("adapter_config.json"));
  training_.train("ranks", from_base({"--adapter", adapter, "--local-ranks", "2",
                                      "--gradient-accumulation-steps", "1", "--zero-stage", "3"}));
  training_.train("stages", from_base({"--adapter", adapter, "--local-ranks", "2",
                                       "--pipeline-parallel", "2"}));
  EXPECT_EQ(training_.rows("stages"), more);
  expect_near(training_.rows("ranks"), more, 1e-2);
  expect_refused(from_base({"--adapter", adapter, "--lora-rank", "5"}), "--lora-rank 5");
  expect_refused(from_base({"--adapter", adapter, "--lora-alpha", "5"}), "--lora-alpha 5");
  expect_refused(from_base({"--adapter", adapter, "--lora-rslora", "on"}), "--lora-rslora on");
  expect_refused(from_base({"--adapter", adapter, "--lora-targets", "q_proj"}), "down_proj q_proj");
  auto config = read_json("first/final/adapter_config.json");
  config["lora_dropout"] = 0.5;
  training_.directory().write("first/final/adapter_config.json", config.dump());
  expect_refused(from_base({"--adapter", adapter}), "lora_dropout 0.5");
}

TEST_F(AdapterRuns, RefuseWhatIsNotBuiltOrNotMeant) {
  expect_refused(adapted({"--lora-type", "dora", "--local-ranks", "2", "--tensor-parallel", "2"}),
                 "--tensor-parallel 2: an adapter with magnitudes (dora) is not built");
  expect_refused(adapted({"--lora-dropout", "0.1"}), "--lora-dropout 0.1 is not built");
  expect_refused(adapted({"--trainable", "*"}), "--trainable with an adapter");
  expect_refused(from_base({"--lora-alpha", "4"}), "this run has none");
  expect_refused(from_base({"--lora-rank", "4", "--lora-targets", "lm_head"}), "lm_head");
  training_.train("run", adapted());
  Arguments model = adapted();
  model[1] = training_.path("run/final");
  expect_refused(model, "is an adapter, not a model");
}

// All three write the likeliest text of one model, up to roundings of bf16.
TEST_F(AdapterRuns, AreMergedAndSampled) {
  training_.train("run", adapted({"--checkpoint-every", "6", "--precision", "fp32"}));
  const auto merged = run_program({"merge", training_.path("base/final"),
                                   training_.path("run/final"), training_.path("merged")});
  EXPECT_EQ(merged.code, 0) << merged;
  EXPECT_THAT(merged.output, HasSubstr("6 tensors"));
  std::vector<std::string> texts;
  for (const char* name : {"run/final", "run/checkpoint-6", "merged"}) {
    const Outcome sampled = run_program({"sample", "--model", training_.path(name), "--prompt",
                                         "the ", "--max-new-tokens", "12", "--temperature", "0"});
    EXPECT_EQ(sampled.code, 0) << sampled;
    texts.push_back(sampled.output);
  }
  EXPECT_EQ(texts[1], texts[0]);
  EXPECT_EQ(texts[2], texts[0]);
  const auto again = run_program({"merge", training_.path("base/final"),
                                  training_.path("run/final"), training_.path("merged")});
  EXPECT_EQ(again.code, 2) << again;
  EXPECT_EQ(run_program({"merge", training_.path("base/final")}).code, 2);
}

// The base has random weights. They are kept in the run directory, and the run says what that is
// good for.
TEST_F(AdapterRuns, OfRandomWeightsSayWhatTheyAreGoodFor) {
  const Arguments random = {"--lora-rank", "2", "--max-steps", "4"};
  training_.train("alone", random);
  const Outcome outcome = training_.train("run", random + Arguments{"--stop-after-step", "2"});
  EXPECT_THAT(outcome.errors, HasSubstr("random weights"));
  training_.train("run", random + Arguments{"--resume", "auto"});
  training_.expect_same("run", "alone", "final");
}

}  // namespace
}  // namespace terrace
