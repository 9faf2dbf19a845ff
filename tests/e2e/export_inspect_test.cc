#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/e2e/tiny_training.h"

namespace terrace {
namespace {

using nlohmann::json;
using testing::Contains;
using testing::HasSubstr;

class ExportAndInspect : public testing::Test {
 protected:
  Outcome run(const std::string& command, const Arguments& more) const {
    return run_program(Arguments{command} + more);
  }
  json inspected(const std::string& name, const Arguments& more = {}) const {
    const Outcome outcome = run("inspect", Arguments{training_.path(name), "--json"} + more);
    EXPECT_EQ(outcome.code, 0) << outcome;
    const json document = json::parse(outcome.output);
    EXPECT_EQ(document.at("schema"), "terrace.inspect/1");
    return document.at("results").at(0);
  }

  const TinyTraining training_;
};

TEST_F(ExportAndInspect, ACheckpointExportsAsTheFinalDirectoryOfItsRun) {
  training_.train("run", {"--max-steps", "2", "--checkpoint-every", "2"});
  const std::string checkpoint = training_.path("run/checkpoint-2");
  ASSERT_EQ(run("export", {checkpoint, training_.path("run/exported")}).code, 0);
  EXPECT_EQ(training_.files("run", "exported"), training_.files("run", "final"));
  EXPECT_FALSE(std::filesystem::exists(training_.path("run/exported.writing")));

  const Outcome again = run("export", {checkpoint, training_.path("run/exported")});
  EXPECT_EQ(again.code, 2) << again;
  EXPECT_THAT(again.errors, HasSubstr("has files"));
  training_.directory().write("run/other.writing/kept", "what somebody has there");
  const Outcome beside = run("export", {checkpoint, training_.path("run/other")});
  EXPECT_EQ(beside.code, 2) << beside;
  EXPECT_THAT(beside.errors, HasSubstr("other.writing exists"));
  EXPECT_TRUE(training_.directory().has("run/other.writing/kept"));
}

class ExportOfJsonLines : public ExportAndInspect {
 protected:
  ExportOfJsonLines() {
    const std::string line = R"({"prompt": "red ? ", "completion": "a cat runs.\n"})";
    std::string lines;
    for (int i = 0; i < 60; ++i) lines += line + "\n";
    training_.directory().write("turns.jsonl", lines);
    training_.directory().write("model/tokenizer.json", small_tokenizer() + "\n");
    training_.directory().write("other/tokenizer.json", small_tokenizer());
    training_.directory().write("other/tokenizer_config.json", R"({"eos_token": "."})");
    training_.directory().write("other/special_tokens_map.json", "{}");
    training_.directory().write("other/notes.json", "{}");
  }
  void train(const std::string& tokenizer) const {
    training_.train(
        "run", {"--data", training_.path("turns.jsonl"), "--sequence-length", "32", "--tokenizer",
                tokenizer, "--max-steps", "2", "--checkpoint-every", "2"});
  }
  std::map<std::string, std::string> exported(const std::string& name) const {
    const Outcome outcome =
        run("export", {training_.path("run/checkpoint-2"), training_.path("run/" + name)});
    EXPECT_EQ(outcome.code, 0) << outcome;
    return training_.files("run", name);
  }
};

TEST_F(ExportOfJsonLines, HasNoTokenizerWhereTheIdsAreBytes) {
  train("bytes");
  const auto files = exported("exported");
  EXPECT_EQ(files, training_.files("run", "final"));
  EXPECT_FALSE(files.contains("tokenizer.json"));
  std::filesystem::remove(training_.path("turns.jsonl"));
  EXPECT_EQ(exported("without_data"), files);
}

TEST_F(ExportOfJsonLines, HasTheTokenizerThatWasNamed) {
  train(training_.path("other/tokenizer.json"));
  const auto files = exported("exported");
  EXPECT_EQ(files, training_.files("run", "final"));
  EXPECT_EQ(files.at("tokenizer.json"), small_tokenizer());
  EXPECT_EQ(files.at("tokenizer_config.json"), R"({"eos_token": "."})");
  EXPECT_EQ(files.at("special_tokens_map.json"), "{}");
  EXPECT_FALSE(files.contains("notes.json"));
  std::filesystem::remove(training_.path("turns.jsonl"));
  EXPECT_EQ(exported("without_data"), files);
}

TEST_F(ExportOfJsonLines, HasTheTokenizerOfADirectory) {
  train(training_.path("other"));
  const auto files = exported("exported");
  EXPECT_EQ(files, training_.files("run", "final"));
  EXPECT_TRUE(files.contains("tokenizer.json"));
  EXPECT_TRUE(files.contains("tokenizer_config.json"));
}

TEST_F(ExportOfJsonLines, OfAnAdapterHasATokenizerThatWasNamed) {
  training_.train("base", {"--max-steps", "1"});
  const auto tune = [&](const std::string& tokenizer) {
    std::filesystem::remove_all(training_.path("run"));
    const Outcome tuned = run_program(
        {"train", "--model", training_.path("base/final"), "--data", training_.path("turns.jsonl"),
         "--sequence-length", "32", "--max-steps", "2", "--checkpoint-every", "2", "--lora-rank",
         "2", "--tokenizer", tokenizer, "--run-dir", training_.path("run")});
    ASSERT_EQ(tuned.code, 0) << tuned;
  };
  tune(training_.path("other"));
  const auto files = exported("exported");
  EXPECT_EQ(files, training_.files("run", "final"));
  EXPECT_EQ(files.at("tokenizer.json"), small_tokenizer());
  EXPECT_TRUE(files.contains("tokenizer_config.json"));
  const Outcome sampled = run("sample", {"--model", training_.path("run/final"), "--prompt", "%"});
  EXPECT_EQ(sampled.code, 2) << sampled;
  EXPECT_THAT(sampled.errors, HasSubstr("the tokenizer turns it into no tokens"));

  tune("bytes");
  EXPECT_EQ(training_.files("run", "final").size(), 2U);
}

TEST_F(ExportOfJsonLines, HasTheTokenizerOfTheModel) {
  train("auto");
  const auto files = exported("exported");
  EXPECT_EQ(files, training_.files("run", "final"));
  EXPECT_EQ(files.at("tokenizer.json"), small_tokenizer() + "\n");
}

// The small tokenizer has no token for this prompt, but the tokenizer of bytes has one.
TEST_F(ExportOfJsonLines, IsSampledFromTheCheckpointByTheTokenizerOfItsRun) {
  const auto sample = [&](const Arguments& more) {
    return run("sample", Arguments{"--model", training_.path("run/checkpoint-2"), "--prompt", "%",
                                   "--max-new-tokens", "2"} +
                             more);
  };
  train(training_.path("other"));
  const Outcome named = sample({});
  EXPECT_EQ(named.code, 2) << named;
  EXPECT_THAT(named.errors, HasSubstr("the tokenizer turns it into no tokens"));
  const Outcome asked = sample({"--tokenizer", "bytes"});
  EXPECT_EQ(asked.code, 0) << asked;

  std::filesystem::remove_all(training_.path("run"));
  train("auto");
  EXPECT_EQ(sample({}).code, 2);

  std::filesystem::remove_all(training_.path("run"));
  train("bytes");
  const Outcome bytes = sample({});
  EXPECT_EQ(bytes.code, 0) << bytes;
  EXPECT_EQ(bytes.errors, "");
  EXPECT_EQ(sample({"--tokenizer", training_.path("other")}).code, 2);
}

TEST_F(ExportOfJsonLines, IsDoubtedToBeOfBytesWhereNoRunSaysSo) {
  std::string config = training_.directory().read("model/config.json");
  const std::string vocabulary = "256";
  ASSERT_NE(config.find(vocabulary), std::string::npos);
  config.replace(config.find(vocabulary), vocabulary.size(), "300");
  training_.directory().write("model/config.json", config);
  train("bytes");
  const Arguments sample = {
      "--model", training_.path("run/checkpoint-2"), "--prompt", "a", "--max-new-tokens", "2"};
  EXPECT_EQ(run("sample", sample).errors, "");
  std::filesystem::remove(training_.path("run/config.toml"));
  const Outcome outcome = run("sample", sample);
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("text is read as bytes"));
}

TEST_F(ExportAndInspect, AnExportHasTheTypeAndTheShardsThatAreAsked) {
  training_.train("run", {"--max-steps", "1", "--checkpoint-every", "1"});
  const Outcome outcome = run("export", {training_.path("run/checkpoint-1"), "--dtype", "float32",
                                         "--max-shard-size", "20KB", training_.path("sharded")});
  ASSERT_EQ(outcome.code, 0) << outcome;
  const json found = inspected("sharded");
  EXPECT_EQ(found.at("kind"), "model");
  EXPECT_GT(found.at("files").size(), 1U);
  EXPECT_EQ(found.at("elements_by_type").size(), 1U);
  EXPECT_EQ(found.at("elements_by_type").at("F32"), found.at("elements"));
  EXPECT_EQ(found.at("elements"), inspected("run/final").at("elements"));
}

TEST_F(ExportAndInspect, FrozenWeightsComeFromWhereTheCheckpointSays) {
  training_.train("base", {"--max-steps", "1"});
  const Outcome tuned =
      run_program({"train", "--model", training_.path("base/final"), "--data",
                   training_.path("text.txt"), "--max-steps", "2", "--checkpoint-every", "2",
                   "--trainable", "model.layers.1.*", "--run-dir", training_.path("run")});
  ASSERT_EQ(tuned.code, 0) << tuned;
  const std::string checkpoint = training_.path("run/checkpoint-2");
  ASSERT_EQ(run("export", {checkpoint, training_.path("run/exported")}).code, 0);
  EXPECT_EQ(training_.files("run", "exported"), training_.files("run", "final"));

  const json found = inspected("run/checkpoint-2");
  EXPECT_LT(found.at("trained_elements"), found.at("elements"));
  EXPECT_EQ(found.at("frozen_from"), training_.path("base/final"));
}

TEST_F(ExportAndInspect, ACheckpointOfAnAdapterExportsAsOne) {
  training_.train("base", {"--max-steps", "1"});
  const Outcome tuned =
      run_program({"train", "--model", training_.path("base/final"), "--data",
                   training_.path("text.txt"), "--max-steps", "2", "--checkpoint-every", "2",
                   "--lora-rank", "2", "--run-dir", training_.path("run")});
  ASSERT_EQ(tuned.code, 0) << tuned;
  const Outcome outcome =
      run("export", {training_.path("run/checkpoint-2"), training_.path("run/exported")});
  ASSERT_EQ(outcome.code, 0) << outcome;
  EXPECT_EQ(training_.files("run", "exported"), training_.files("run", "final"));

  const Outcome merged = run("merge", {training_.path("base/final"),
                                       training_.path("run/checkpoint-2"), training_.path("m")});
  EXPECT_EQ(merged.code, 2) << merged;
  EXPECT_THAT(merged.errors, HasSubstr("terrace export " + training_.path("run/checkpoint-2")));
  EXPECT_FALSE(std::filesystem::exists(training_.path("m")));

  const Outcome sharded = run("export", {training_.path("run/checkpoint-2"),
                                         training_.path("sharded"), "--max-shard-size", "1MB"});
  EXPECT_EQ(sharded.code, 2) << sharded;
  EXPECT_THAT(sharded.errors, HasSubstr("--max-shard-size"));
  EXPECT_FALSE(std::filesystem::exists(training_.path("sharded")));
}

TEST_F(ExportAndInspect, AnAdapterOnAnotherBaseIsDoubted) {
  training_.train("base", {"--max-steps", "1"});
  training_.train("second", {"--max-steps", "2"});
  const auto train = [&](const std::string& model, const Arguments& more) {
    return run_program(Arguments{"train", "--model", training_.path(model), "--data",
                                 training_.path("text.txt"), "--max-steps", "1"} +
                       more);
  };
  ASSERT_EQ(train("base/final", {"--lora-rank", "2", "--run-dir", training_.path("run")}).code, 0);
  const std::string adapter = training_.path("run/final");
  const Outcome own = run("merge", {training_.path("base/final"), adapter, training_.path("m1")});
  EXPECT_EQ(own.code, 0) << own;
  EXPECT_EQ(own.errors.find("was trained on"), std::string::npos) << own;
  const Outcome other =
      run("merge", {training_.path("second/final"), adapter, training_.path("m2")});
  EXPECT_EQ(other.code, 0) << other;
  EXPECT_THAT(other.errors, HasSubstr("was trained on"));
  const Outcome tuned =
      train("second/final", {"--adapter", adapter, "--run-dir", training_.path("again")});
  EXPECT_EQ(tuned.code, 0) << tuned;
  EXPECT_THAT(tuned.errors, HasSubstr("was trained on"));
}

TEST_F(ExportAndInspect, AnAdapterIsDescribed) {
  training_.train("base", {"--max-steps", "1"});
  const Outcome tuned = run_program({"train", "--model", training_.path("base/final"), "--data",
                                     training_.path("text.txt"), "--max-steps", "1", "--lora-rank",
                                     "2", "--run-dir", training_.path("run")});
  ASSERT_EQ(tuned.code, 0) << tuned;
  const json adapter = inspected("run/final");
  EXPECT_EQ(adapter.at("kind"), "adapter");
  EXPECT_EQ(adapter.at("base"), training_.path("base/final"));
  EXPECT_EQ(adapter.at("rank"), 2);
  EXPECT_EQ(adapter.at("alpha"), 4);
  EXPECT_EQ(adapter.at("elements_by_type").at("F32"), adapter.at("elements"));
  EXPECT_EQ(adapter.at("tensors").at(0).at("shape").at(0), 2);
  EXPECT_EQ(inspected("run").at("has_result"), true);
}

TEST_F(ExportAndInspect, WhatIsNoCheckpointOrIsDamagedIsRefused) {
  training_.train("run", {"--max-steps", "1", "--checkpoint-every", "1"});
  EXPECT_EQ(run("export", {training_.path("run/final"), training_.path("out")}).code, 2);
  const Outcome one = run("export", {training_.path("run/checkpoint-1")});
  EXPECT_EQ(one.code, 2);
  EXPECT_THAT(one.errors, HasSubstr("DIR is missing"));
  const std::string file = "run/checkpoint-1/master-00001.safetensors";
  std::string bytes = training_.directory().read(file);
  bytes.at(bytes.size() - 5) ^= 1;
  training_.directory().write(file, bytes);
  const Outcome damaged =
      run("export", {training_.path("run/checkpoint-1"), training_.path("out")});
  EXPECT_EQ(damaged.code, 5) << damaged;
  EXPECT_THAT(damaged.errors, HasSubstr("master-00001.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(training_.path("out")));
}

TEST_F(ExportAndInspect, EveryKindOfPathIsDescribed) {
  training_.train("run", {"--max-steps", "2", "--checkpoint-every", "1", "--trace-steps", "1:2",
                          "--optimizer", "sgd"});
  const json of_run = inspected("run");
  EXPECT_EQ(of_run.at("kind"), "run");
  EXPECT_EQ(of_run.at("checkpoints").size(), 2U);
  EXPECT_EQ(of_run.at("has_result"), true);
  EXPECT_EQ(of_run.at("last_row").at("step"), 2);

  const json checkpoint = inspected("run/checkpoint-1");
  EXPECT_EQ(checkpoint.at("kind"), "checkpoint");
  EXPECT_EQ(checkpoint.at("optimizer"), "sgd");
  EXPECT_EQ(checkpoint.at("step"), 1);
  EXPECT_EQ(checkpoint.at("trained_elements"), checkpoint.at("elements"));

  const json file = inspected("run/final/model.safetensors");
  EXPECT_EQ(file.at("kind"), "safetensors");
  EXPECT_EQ(file.at("elements"), checkpoint.at("elements"));

  const json trace = inspected("run/trace.json");
  EXPECT_EQ(trace.at("kind"), "trace");
  EXPECT_THAT(trace.at("tracks"), Contains("compute"));
  EXPECT_GT(trace.at("events"), 0);

  training_.directory().write("odd/trace.json", R"({"traceEvents": [{"name": "forward"}]})");
  EXPECT_THAT(run("inspect", {training_.path("odd/trace.json")}).errors,
              HasSubstr("not a complete trace"));

  const json text = inspected("text.txt");
  EXPECT_EQ(text.at("kind"), "data");
  EXPECT_EQ(text.at("is_text"), true);
  EXPECT_EQ(text.at("tokens"), std::filesystem::file_size(training_.path("text.txt")));
}

TEST_F(ExportAndInspect, FilesOfDataAreDescribed) {
  training_.directory().write("turns.jsonl", R"({"prompt": "a", "completion": "bc"}
{"prompt": "d", "completion": "ef"}
)");
  const json lines = inspected("turns.jsonl");
  EXPECT_EQ(lines.at("kind"), "json_lines");
  EXPECT_EQ(lines.at("keys"), (json{"prompt", "completion"}));
  const Outcome made = run("tokenize", {"--tokenizer", "bytes", "--output", training_.path("ids"),
                                        training_.path("turns.jsonl")});
  ASSERT_EQ(made.code, 0) << made;
  const json ends = inspected("ids.idx");
  EXPECT_EQ(ends.at("kind"), "document_ends");
  EXPECT_EQ(ends.at("documents"), 2);
  EXPECT_EQ(ends.at("tokens"), inspected("ids").at("tokens"));
  EXPECT_EQ(ends.at("of"), training_.path("ids"));
  const json mask = inspected("ids.mask");
  EXPECT_EQ(mask.at("kind"), "mask");
  EXPECT_EQ(mask.at("tokens"), ends.at("tokens"));
  std::filesystem::remove(training_.path("ids"));
  EXPECT_TRUE(inspected("ids.mask").at("of").is_null());
  training_.directory().write("odd.idx", "123");
  EXPECT_EQ(run("inspect", {training_.path("odd.idx")}).code, 5);
  training_.directory().write("odd.jsonl", "[1]\n");
  EXPECT_EQ(run("inspect", {training_.path("odd.jsonl")}).code, 5);
}

TEST_F(ExportAndInspect, AModelWithoutWeightsIsDescribed) {
  training_.train("run", {"--max-steps", "1"});
  std::filesystem::remove(training_.path("run/final/model.safetensors"));
  const json bare = inspected("run/final");
  EXPECT_EQ(bare.at("kind"), "model");
  EXPECT_THAT(bare.at("weights").get<std::string>(), HasSubstr("none"));
  EXPECT_FALSE(bare.contains("tensors"));
}

TEST_F(ExportAndInspect, LinesNameWhatJsonDoes) {
  training_.train("run", {"--max-steps", "1"});
  const Outcome lines = run("inspect", {training_.path("run/final")});
  ASSERT_EQ(lines.code, 0) << lines;
  EXPECT_THAT(lines.output, HasSubstr("kind               model"));
  EXPECT_THAT(lines.output, HasSubstr("model.embed_tokens.weight  256 x 32  BF16"));
}

TEST_F(ExportAndInspect, WhatIsNotThereOrIsRawIsRefused) {
  EXPECT_EQ(run("inspect", {training_.path("nothing")}).code, 2);
  training_.directory().write("ids.bin", std::string(64, '\0'));
  const Outcome raw = run("inspect", {training_.path("ids.bin")});
  EXPECT_EQ(raw.code, 2) << raw;
  EXPECT_THAT(raw.errors, HasSubstr("--data-format"));
  EXPECT_EQ(inspected("ids.bin", {"--data-format", "raw-u16"}).at("tokens"), 32);
  training_.directory().write("program", std::string("\x7f\x45LF\0\0", 6) + std::string(64, '\0'));
  const Outcome unknown = run("inspect", {training_.path("program")});
  EXPECT_EQ(unknown.code, 2) << unknown;
  EXPECT_THAT(unknown.errors, HasSubstr("inspect reads run directories"));
  training_.directory().write("bad.safetensors", "not a header");
  EXPECT_EQ(run("inspect", {training_.path("bad.safetensors")}).code, 5);
}

}  // namespace
}  // namespace terrace
