#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/e2e/tiny_training.h"

// Runs in which --trainable names the tensors that train.
namespace terrace {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// Returns the bytes of the tensors of a safetensors file, by name.
std::map<std::string, std::string> tensors_of(const std::string& file) {
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  const auto header = nlohmann::json::parse(file.substr(8, header_bytes));
  std::map<std::string, std::string> tensors;
  for (const auto& [name, tensor] : header.items()) {
    if (name == "__metadata__") continue;
    const auto begin = tensor["data_offsets"][0].get<std::size_t>();
    const auto end = tensor["data_offsets"][1].get<std::size_t>();
    tensors[name] = file.substr(8 + header_bytes + begin, end - begin);
  }
  return tensors;
}

class FrozenRuns : public testing::Test {
 protected:
  FrozenRuns() : training_(4) {
    training_.train("first", {"--max-steps", "2", "--precision", "fp32"});
  }

  // Returns arguments that start from weights in fp32 and compute in bf16.
  Arguments tuned(const Arguments& more = {}) const {
    return Arguments{"--model",     training_.path("first/final"),
                     "--init",      "weights",
                     "--trainable", "model.layers.2.*",
                     "*.3.mlp.*",   "--max-steps",
                     "6",           "--learning-rate",
                     "0.01"} +
           more;
  }
  std::map<std::string, std::string> result_of(const std::string& run) const {
    return tensors_of(training_.directory().read(run + "/final/model.safetensors"));
  }
  nlohmann::json manifest(const std::string& checkpoint) const {
    return nlohmann::json::parse(training_.directory().read(checkpoint + "/manifest.json"));
  }
  static bool trains(const std::string& name) {
    return name.find("layers.2.") != std::string::npos ||
           name.find("layers.3.mlp.") != std::string::npos;
  }
  Outcome run(const std::string& name, const Arguments& more) const {
    return run_program(training_.command(name, more));
  }
  void flip_a_byte(const std::string& file, const std::string& tensor) const {
    std::string bytes = training_.directory().read(file);
    std::uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
    const auto header = nlohmann::json::parse(bytes.substr(8, header_bytes));
    const auto begin = header[tensor]["data_offsets"][0].get<std::size_t>();
    bytes[8 + header_bytes + begin + 100] ^= 1;
    training_.directory().write(file, bytes);
  }

  const TinyTraining training_;
};

TEST_F(FrozenRuns, LeaveTheOtherTensorsByteForByte) {
  training_.train("run", tuned());
  training_.train("everywhere", tuned(training_.nvme() + Arguments{"--place-parameters", "nvme",
                                                                   "--place-optimizer", "nvme",
                                                                   "--recompute", "full"}));
  const auto source = result_of("first");
  const auto result = result_of("run");
  EXPECT_EQ(result, result_of("everywhere"));
  EXPECT_EQ(training_.rows("run"), training_.rows("everywhere"));
  ASSERT_EQ(source.size(), result.size());
  for (const auto& [name, bytes] : source)
    EXPECT_EQ(result.at(name) != bytes, trains(name)) << name;
}

// Only bytes of tensors that train move.
TEST_F(FrozenRuns, WriteAndSendNoMoreThanTheirShare) {
  const Arguments ranks =
      training_.nvme() +
      Arguments{"--local-ranks", "2", "--zero-stage", "2", "--place-optimizer", "nvme"};
  training_.train("part", tuned(ranks));
  training_.train("full", Arguments{"--model", training_.path("first/final"), "--init", "weights",
                                    "--max-steps", "6"} +
                              ranks);
  double trained = 0;
  double all = 0;
  for (const auto& [name, bytes] : result_of("first")) {
    const auto elements = static_cast<double>(bytes.size());
    all += elements;
    if (trains(name)) trained += elements;
  }
  const auto part = training_.rows("part");
  const auto full = training_.rows("full");
  for (const char* column : {"nvme_write_bytes", "collective_bytes"}) {
    // Units are padded to whole blocks for each rank, which is a lot for such small units.
    EXPECT_LT(sum_of(part, column) / sum_of(full, column), trained / all + 0.1) << column;
  }
}

TEST_F(FrozenRuns, GoOnFromWeightsThatTheirCheckpointsNameOnly) {
  training_.train("alone", tuned());
  training_.train("run", tuned({"--stop-after-step", "3"}));
  const auto saved = manifest("run/checkpoint-3");
  EXPECT_EQ(saved["frozen"]["directory"], training_.path("first/final"));
  EXPECT_FALSE(training_.directory().has("run/frozen"));
  EXPECT_FALSE(training_.directory().has("run/checkpoint-3/master-00000.safetensors"));
  EXPECT_FALSE(training_.directory().has("run/checkpoint-3/master-00001.safetensors"));
  EXPECT_TRUE(training_.directory().has("run/checkpoint-3/master-00003.safetensors"));
  training_.train("run",
                  tuned({"--resume", "auto", "--local-ranks", "1", "--checkpoint-every", "2"}));
  training_.expect_same("run", "alone", "final");
  EXPECT_EQ(manifest("run/checkpoint-4")["frozen"], saved["frozen"]);
  const Outcome sampled = run_program({"sample", "--model", training_.path("run/checkpoint-4"),
                                       "--prompt", "a", "--max-new-tokens", "4"});
  EXPECT_EQ(sampled.code, 0) << sampled;
}

TEST_F(FrozenRuns, RefuseToGoOnWithoutTheirWeights) {
  training_.train("run", tuned({"--stop-after-step", "3"}));
  const std::string weights = training_.path("first/final");
  fs::rename(weights, training_.path("moved"));
  Arguments resumed = tuned({"--resume", "auto"});
  resumed[1] = training_.path("model");
  resumed[3] = "random";
  const Outcome gone = run("run", resumed);
  EXPECT_EQ(gone.code, 4) << gone;
  EXPECT_THAT(gone.errors, HasSubstr(weights));
  EXPECT_THAT(gone.errors, HasSubstr("restore"));
  fs::rename(training_.path("moved"), weights);
  flip_a_byte("first/final/model.safetensors", "model.layers.1.mlp.up_proj.weight");
  const Outcome changed = run("run", tuned({"--resume", "auto"}));
  EXPECT_EQ(changed.code, 5) << changed;
  EXPECT_THAT(changed.errors, HasSubstr("model.safetensors"));
  EXPECT_THAT(changed.errors, HasSubstr("model.layers.1.mlp.up_proj.weight"));
  flip_a_byte("first/final/model.safetensors", "model.layers.1.mlp.up_proj.weight");
  EXPECT_EQ(run("run", tuned({"--resume", "auto"})).code, 0);
}

// The tensors that train may differ in the copy, as the checkpoint has its own.
TEST_F(FrozenRuns, FindACopyOfTheirWeightsAsTheModel) {
  training_.train("alone", tuned());
  training_.train("run", tuned({"--stop-after-step", "3"}));
  fs::rename(training_.path("first/final"), training_.path("moved"));
  flip_a_byte("moved/model.safetensors", "model.layers.2.mlp.up_proj.weight");
  Arguments resumed = tuned({"--resume", "auto"});
  resumed[1] = training_.path("moved");
  training_.train("run", resumed);
  training_.expect_same("run", "alone", "final");
}

// Later checkpoints name the directory from which the frozen weights were read.
TEST_F(FrozenRuns, TakeACopyWhereTheirWeightsHaveChanged) {
  training_.train("alone", tuned());
  training_.train("run", tuned({"--stop-after-step", "3"}));
  fs::copy(training_.path("first/final"), training_.path("copy"), fs::copy_options::recursive);
  flip_a_byte("first/final/model.safetensors", "model.layers.1.mlp.up_proj.weight");
  Arguments resumed = tuned({"--resume", "auto", "--checkpoint-every", "2"});
  resumed[1] = training_.path("copy");
  training_.train("run", resumed);
  training_.expect_same("run", "alone", "final");
  EXPECT_EQ(manifest("run/checkpoint-4")["frozen"]["directory"], training_.path("copy"));
}

TEST_F(FrozenRuns, RefuseAnotherSetOfTensors) {
  training_.train("run", tuned({"--stop-after-step", "3"}));
  Arguments other = tuned({"--resume", "auto"});
  other[6] = "*.3.self_attn.*";
  const Outcome outcome = run("run", other);
  EXPECT_EQ(outcome.code, 2) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("--trainable differs from the checkpoint"));
  const Outcome all = run("run", {"--max-steps", "6", "--resume", "auto"});
  EXPECT_EQ(all.code, 2) << all;
}

TEST_F(FrozenRuns, StoreRandomParametersOnce) {
  const Arguments random = {"--trainable", "*.[23].mlp.*", "--max-steps",
                            "6",           "--precision",  "bf16"};
  training_.train("alone", random);
  training_.train("run", random + Arguments{"--checkpoint-every", "1", "--stop-after-step", "3"});
  EXPECT_TRUE(training_.directory().has("run/frozen/frozen-00000.safetensors"));
  const auto time = fs::last_write_time(training_.path("run/frozen/frozen-00000.safetensors"));
  training_.train("run", random + Arguments{"--resume", "auto", "--checkpoint-every", "1"});
  EXPECT_EQ(fs::last_write_time(training_.path("run/frozen/frozen-00000.safetensors")), time);
  EXPECT_EQ(manifest("run/checkpoint-5")["frozen"], manifest("run/checkpoint-2")["frozen"]);
  training_.expect_same("run", "alone", "final");
  // Another run directory has files of its own.
  training_.train("second", random + Arguments{"--resume", training_.path("run/checkpoint-2"),
                                               "--stop-after-step", "4"});
  EXPECT_TRUE(training_.directory().has("second/frozen/frozen-00000.safetensors"));
  flip_a_byte("second/frozen/frozen-00000.safetensors", "model.embed_tokens.weight");
  const Outcome changed = run("second", random + Arguments{"--resume", "auto"});
  EXPECT_EQ(changed.code, 5) << changed;
  EXPECT_THAT(changed.errors, HasSubstr("frozen-00000.safetensors"));
  // An earlier checkpoint would not help, as it has the same frozen parameters.
  EXPECT_THAT(changed.errors, HasSubstr("restore the directory"));
  EXPECT_THAT(changed.errors, Not(HasSubstr("--resume")));
}

TEST_F(FrozenRuns, AreKeysOfTheFileToo) {
  training_.directory().write(
      "tuned.toml", training_.directory().read("common.toml") + "trainable = [\"*.[23].mlp.*\"]\n");
  const Outcome outcome = run_program({"train", "--config", training_.path("tuned.toml"),
                                       "--run-dir", training_.path("by_file"), "--max-steps", "2"});
  ASSERT_EQ(outcome.code, 0) << outcome;
  training_.train("by_flag", {"--trainable", "*.[23].mlp.*", "--max-steps", "2"});
  training_.expect_same("by_file", "by_flag", "final");
  const Outcome none = run("none", {"--trainable", "layers.9.*", "--max-steps", "2"});
  EXPECT_EQ(none.code, 2) << none;
  EXPECT_THAT(none.errors, HasSubstr("--trainable layers.9.* matches no tensor"));
  EXPECT_THAT(none.errors, HasSubstr("model.embed_tokens.weight"));
}

}  // namespace
}  // namespace terrace
