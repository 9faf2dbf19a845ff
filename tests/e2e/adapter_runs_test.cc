#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
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
  // Expects that an adapter and the model that it is merged into write the same likeliest text.
  void expect_same_text_when_merged(const std::string& adapter) const {
    const auto merged = run_program(
        {"merge", training_.path("base/final"), training_.path(adapter), training_.path("merged")});
    EXPECT_EQ(merged.code, 0) << merged;
    std::vector<std::string> texts;
    for (const std::string& name : {adapter, std::string("merged")}) {
      const Outcome sampled = run_program({"sample", "--model", training_.path(name), "--prompt",
                                           "the ", "--max-new-tokens", "12", "--temperature", "0"});
      EXPECT_EQ(sampled.code, 0) << sampled;
      texts.push_back(sampled.output);
    }
    EXPECT_EQ(texts[1], texts[0]);
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
  expect_same_text_when_merged("alone/final");
}

// An adapter whose patterns give layers other ranks and alphas is trained further, resumed, merged
// and sampled, and the patterns are written again.
TEST_F(AdapterRuns, WithPatternsDoAllThatOthersDo) {
  training_.train("first", adapted({"--precision", "fp32"}));
  auto config = read_json("first/final/adapter_config.json");
  config["r"] = 2;
  config["rank_pattern"] = {{"q_proj|mlp.down_proj", 4}};
  config["alpha_pattern"] = {{"layers.0.self_attn.q_proj", 40}};
  training_.directory().write("first/final/adapter_config.json", config.dump());
  const Arguments more =
      from_base({"--adapter", training_.path("first/final"), "--precision", "fp32"});
  training_.train("alone", more);
  const auto written = read_json("alone/final/adapter_config.json");
  for (const char* key : {"r", "lora_alpha", "rank_pattern", "alpha_pattern"}) {
    EXPECT_EQ(written[key], config[key]) << key;
  }
  training_.train("run", more + Arguments{"--stop-after-step", "3"});
  training_.train("run", more + Arguments{"--resume", "auto"});
  training_.expect_same("run", "alone", "final");
  expect_same_text_when_merged("alone/final");
  expect_refused(more + Arguments{"--lora-rank", "4"}, "which has 2");
}

// Modules that train whole beside an adapter are saved with it, resumed, exported, trained further,
// merged and sampled. The head is the embedding here.
TEST_F(AdapterRuns, WithWholeModulesDoAllThatOthersDo) {
  const Arguments whole = adapted({"--precision", "fp32", "--checkpoint-every", "3", "--trainable",
                                   "embed_tokens.weight", "*norm.weight"});
  training_.train("alone", whole);
  training_.train("everywhere", whole + training_.nvme() +
                                    Arguments{"--place-parameters", "nvme", "--place-optimizer",
                                              "nvme", "--recompute", "full"});
  training_.expect_same("everywhere", "alone", "final");
  EXPECT_EQ(read_json("alone/checkpoint-3/manifest.json")["adapter"]["whole_modules"],
            read_json("alone/final/adapter_config.json")["modules_to_save"]);
  const std::string from = training_.path("alone/checkpoint-3");
  const Outcome other = run(
      "other", adapted({"--precision", "fp32", "--trainable", "norm.weight", "--resume", from}));
  EXPECT_EQ(other.code, 2) << other;
  EXPECT_THAT(other.errors, HasSubstr("whole modules model.norm) differs from the adapter"));
  training_.train("run", whole + Arguments{"--stop-after-step", "3"});
  training_.train("run", whole + Arguments{"--resume", "auto"});
  training_.expect_same("run", "alone", "final");
  const auto exported =
      run_program({"export", training_.path("run/checkpoint-6"), training_.path("exported")});
  EXPECT_EQ(exported.code, 0) << exported;
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"}) {
    EXPECT_EQ(training_.directory().read(std::string("exported/") + name),
              training_.files("alone", "final").at(name));
  }
  const Arguments given = {"--adapter", training_.path("alone/final"), "--precision", "fp32"};
  training_.train("more", from_base(given));
  EXPECT_LT(training_.rows("more").front().columns.at("loss"),
            training_.rows("alone").front().columns.at("loss"));
  EXPECT_EQ(read_json("more/final/adapter_config.json"),
            read_json("alone/final/adapter_config.json"));
  const Arguments contradicting = given + Arguments{"--trainable", "norm.weight"};
  expect_refused(from_base(contradicting), "--trainable norm.weight contradicts");
  expect_same_text_when_merged("more/final");
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
}

// Dropout is saved with the adapter, and a run that continues the adapter keeps it unless
// --lora-dropout is given. Sampling and merging drop nothing.
TEST_F(AdapterRuns, WithDropoutDoAllThatOthersDo) {
  const Arguments dropping = adapted({"--lora-dropout", "0.25", "--checkpoint-every", "3"});
  training_.train("run", dropping);
  training_.train("everywhere", dropping + training_.nvme() +
                                    Arguments{"--place-parameters", "nvme", "--place-optimizer",
                                              "nvme", "--recompute", "full"});
  training_.expect_same("run", "everywhere", "final");
  EXPECT_EQ(read_json("run/final/adapter_config.json")["lora_dropout"], 0.25);
  training_.train("plain", adapted());
  EXPECT_NE(training_.rows("run"), training_.rows("plain"));
  training_.train("ranks", dropping + Arguments{"--local-ranks", "2", "--zero-stage", "3",
                                                "--gradient-accumulation-steps", "1"});
  expect_near(training_.rows("ranks"), training_.rows("run"), 1e-4);
  training_.train("stages", dropping + Arguments{"--local-ranks", "2", "--pipeline-parallel", "2"});
  EXPECT_EQ(training_.rows("stages"), training_.rows("run"));
  const auto exported =
      run_program({"export", training_.path("run/checkpoint-3"), training_.path("exported")});
  EXPECT_EQ(exported.code, 0) << exported;
  EXPECT_EQ(read_json("exported/adapter_config.json")["lora_dropout"], 0.25);

  const std::string adapter = training_.path("run/final");
  training_.train("more", from_base({"--adapter", adapter}));
  training_.train("same", from_base({"--adapter", adapter, "--lora-dropout", "0.25"}));
  training_.expect_same("more", "same", "final");
  training_.train("undropped", from_base({"--adapter", adapter, "--lora-dropout", "0"}));
  EXPECT_NE(training_.rows("undropped"), training_.rows("more"));
  EXPECT_EQ(read_json("undropped/final/adapter_config.json")["lora_dropout"], 0);
  expect_same_text_when_merged("run/final");
}

// With such a learning rate the adapter stays as it is, so only dropout changes the losses.
TEST_F(AdapterRuns, WithDropoutEvaluateWithoutIt) {
  training_.train("first", adapted());
  const auto train_still = [&](const std::string& run, const std::string& dropout) {
    Arguments arguments = from_base({"--adapter", training_.path("first/final"), "--eval-every",
                                     "3", "--lora-dropout", dropout});
    *(std::ranges::find(arguments, "--learning-rate") + 1) = "1e-30";
    training_.train(run, arguments);
  };
  train_still("plain", "0");
  train_still("dropping", "0.5");
  const std::vector<MetricsRow> plain = training_.rows("plain");
  const std::vector<MetricsRow> dropping = training_.rows("dropping");
  ASSERT_EQ(dropping.size(), plain.size());
  int evaluations = 0;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_NE(dropping[i].columns.at("loss"), plain[i].columns.at("loss"));
    if (!plain[i].columns.contains("validation_loss")) continue;
    EXPECT_EQ(dropping[i].columns.at("validation_loss"), plain[i].columns.at("validation_loss"));
    ++evaluations;
  }
  EXPECT_EQ(evaluations, 2);
}

TEST_F(AdapterRuns, WithDropoutInDocuments) {
  std::string lines;
  for (int i = 0; i < 40; ++i) {
    nlohmann::json ids = nlohmann::json::array();
    for (int j = 0; j < 5 + i % 9; ++j) ids.push_back((i * 37 + j * j * 11) % 250);
    lines += nlohmann::json{{"input_ids", ids}}.dump() + "\n";
  }
  training_.directory().write("documents.jsonl", lines);
  const auto packed = [&](const Arguments& more) {
    return adapted(Arguments{"--data", training_.path("documents.jsonl"), "--packing", "documents",
                             "--sequence-length", "32", "--validation-fraction", "0"} +
                   more);
  };
  training_.train("run", packed({"--lora-dropout", "0.25"}));
  training_.train("recomputed", packed({"--lora-dropout", "0.25", "--recompute", "full"}));
  training_.expect_same("run", "recomputed", "final");
  training_.train("plain", packed({}));
  EXPECT_NE(training_.rows("run"), training_.rows("plain"));
}

TEST_F(AdapterRuns, ResumeWithTheSameDropout) {
  const Arguments dropping = adapted({"--lora-dropout", "0.25"});
  training_.train("run", dropping);
  training_.train("half", dropping + Arguments{"--stop-after-step", "3"});
  const Outcome rest = run("half", dropping + Arguments{"--resume", "auto"});
  EXPECT_EQ(rest.code, 0) << rest;
  EXPECT_THAT(rest.output + rest.errors, testing::Not(HasSubstr("from here on dropout")));
  training_.expect_same("half", "run", "final");
}

// The line names both probabilities, once, wherever the new one comes from.
TEST_F(AdapterRuns, ResumeWithAnotherDropoutAndSaySo) {
  const auto expect_told = [&](const std::string& name, const Arguments& more,
                               const std::string& line) {
    const Outcome outcome = run(name, more);
    EXPECT_EQ(outcome.code, 0) << outcome;
    const std::string text = outcome.output + outcome.errors;
    EXPECT_THAT(text, HasSubstr(line));
    EXPECT_THAT(text, testing::Not(HasSubstr("lora_dropout")));
    return text;
  };
  training_.train("run", adapted({"--lora-dropout", "0.25", "--stop-after-step", "3"}));
  const Arguments from = {"--resume", training_.path("run/checkpoint-3")};
  expect_told("left_out", adapted(from), "from here on dropout is 0; until now it was 0.25");
  const std::string both = expect_told(
      "two_changes", adapted(from + Arguments{"--lora-dropout", "0.5", "--weight-decay", "0.25"}),
      "from here on dropout is 0.5; until now it was 0.25");
  EXPECT_THAT(both, HasSubstr("computes with other options than before: weight_decay"));
  const std::string one = expect_told("run", adapted({"--lora-dropout", "0.5", "--resume", "auto"}),
                                      "from here on dropout is 0.5; until now it was 0.25");
  EXPECT_THAT(one, testing::Not(HasSubstr("computes with other options")));

  const Arguments given = from_base({"--adapter", training_.path("run/final")});
  training_.train("more", given + Arguments{"--stop-after-step", "3"});
  auto config = read_json("run/final/adapter_config.json");
  config["lora_dropout"] = 0.125;
  training_.directory().write("run/final/adapter_config.json", config.dump());
  expect_told("more", given + Arguments{"--resume", "auto"},
              "from here on dropout is 0.125; until now it was 0.5");
}

TEST_F(AdapterRuns, RefuseDropoutWithMagnitudes) {
  const Outcome asked = run("refused", adapted({"--lora-dropout", "0.1", "--lora-type", "dora"}));
  EXPECT_EQ(asked.code, 2) << asked;
  EXPECT_THAT(asked.errors,
              HasSubstr("--lora-dropout 0.1 is not built together with --lora-type dora"));
  training_.train("dora", adapted({"--lora-type", "dora"}));
  auto config = read_json("dora/final/adapter_config.json");
  config["lora_dropout"] = 0.1;
  training_.directory().write("dora/final/adapter_config.json", config.dump());
  const std::string adapter = training_.path("dora/final");
  expect_refused(from_base({"--adapter", adapter}),
                 "--adapter " + adapter + ": lora_dropout 0.1 is not built together with use_dora");
  expect_refused(from_base({"--adapter", adapter}), "give --lora-dropout 0");
  expect_refused(from_base({"--adapter", adapter, "--lora-dropout", "0.2"}),
                 "--lora-dropout 0.2 is not built together with the use_dora of --adapter");
  training_.train("undropped", from_base({"--adapter", adapter, "--lora-dropout", "0"}));
  EXPECT_EQ(read_json("undropped/final/adapter_config.json")["lora_dropout"], 0);
}

TEST_F(AdapterRuns, RefuseWhatIsNotBuiltOrNotMeant) {
  expect_refused(adapted({"--lora-type", "dora", "--local-ranks", "2", "--tensor-parallel", "2"}),
                 "--tensor-parallel 2: an adapter with magnitudes (dora) is not built");
  expect_refused(adapted({"--lora-dropout", "1"}), "give a number from 0 to 0.99");
  expect_refused(from_base({"--lora-dropout", "0.1"}), "this run has none");
  expect_refused(adapted({"--trainable", "*"}), "which --trainable trains whole");
  expect_refused(adapted({"--trainable", "nothing"}), "--trainable nothing matches no tensor");
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
