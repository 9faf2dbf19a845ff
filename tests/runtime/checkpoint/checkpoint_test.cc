#include "runtime/checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/function_ref.h"
#include "base/hash.h"
#include "runtime/checkpoint/durable_file.h"
#include "runtime/engine/training_state.h"
#include "runtime/model/model_config.h"
#include "tests/runtime/checkpoint/full_disk_files.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

class CheckpointTest : public testing::Test {
 public:
  std::string save(std::int64_t step, std::uint64_t seed, bool is_automatic = false) {
    const RandomState state(seed);
    CheckpointProgress progress = {step, 10 * step, seed, 64, 1000};
    progress.is_automatic = is_automatic;
    return write_checkpoint(
        directory_.path(), progress, {config_, layout_, *update_rules().front()},
        [&state](StateField field, const UnitLayout& unit, std::int64_t begin,
                 std::span<float> out) { state.read(field, unit, begin, out); });
  }

  // Flips a bit, `from_end` bytes before the file's end.
  static void damage(const std::string& path, std::int64_t from_end) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-from_end, std::ios::end);
    const auto byte = static_cast<char>(file.get() ^ 1);
    file.seekp(-from_end, std::ios::end);
    file.put(byte);
  }

  // Changes the manifest and makes its checksum right again.
  static void edit_manifest(const std::string& path, FunctionRef<void(nlohmann::json&)> edit) {
    nlohmann::json manifest = nlohmann::json::parse(std::ifstream(path + "/manifest.json"));
    manifest.erase("xxh3");
    edit(manifest);
    const std::string text = manifest.dump();
    manifest["xxh3"] =
        fmt::format("{:016x}", hash_bytes(std::as_bytes(std::span(text.data(), text.size()))));
    std::ofstream(path + "/manifest.json") << manifest.dump(1);
  }

  // Makes the manifest as it was written before files had pieces.
  static void forget_pieces(const std::string& path) {
    edit_manifest(path, [](nlohmann::json& manifest) {
      for (nlohmann::json& file : manifest["files"]) file.erase("pieces");
    });
  }

  void expect_reads_back(const Checkpoint& checkpoint, std::uint64_t seed) const {
    const RandomState expected_state(seed);
    for (const UnitLayout& unit : layout_) {
      for (const StateField field : kStateFields) {
        std::vector<float> expected(static_cast<std::size_t>(unit.padded_elements - 5));
        std::vector<float> got(expected.size());
        expected_state.read(field, unit, 5, expected);
        checkpoint.read(field, unit, 5, got);
        EXPECT_EQ(got, expected) << unit.index;
      }
    }
  }

  TemporaryDirectory directory_;
  ModelConfig config_ = load_model_config("nano");
  std::vector<UnitLayout> layout_ = parameter_layout(config_);
};

TEST_F(CheckpointTest, ReadsBackWhatWasWritten) {
  Checkpoint checkpoint(save(7, 42));
  EXPECT_EQ(checkpoint.progress().step, 7);
  EXPECT_EQ(checkpoint.progress().samples, 70);
  EXPECT_EQ(checkpoint.progress().seed, 42U);
  checkpoint.open(layout_);
  expect_reads_back(checkpoint, 42);
}

TEST_F(CheckpointTest, KeepsTheLossScale) {
  EXPECT_EQ(Checkpoint(save(7, 42)).progress().loss_scale, std::nullopt);
  const RandomState state(42);
  const LossScaleState scale = {
      .scale = 0x1p-3F, .good_steps = 417, .overflows_left = 1, .skipped_steps = 5'000'000'000};
  const std::string path = write_checkpoint(
      directory_.path(), {8, 80, 42, 64, 1000, scale}, {config_, layout_, *update_rules().front()},
      [&state](StateField field, const UnitLayout& unit, std::int64_t begin, std::span<float> out) {
        state.read(field, unit, begin, out);
      });
  EXPECT_EQ(Checkpoint(path).progress().loss_scale, scale);
  edit_manifest(path, [](nlohmann::json& manifest) { manifest["loss_scale"].erase("good_steps"); });
  TERRACE_EXPECT_THROW_WITH(Checkpoint{path}, CorruptData, "good_steps");
}

TEST_F(CheckpointTest, KeepsTheExactGradientNoise) {
  EXPECT_EQ(Checkpoint(save(7, 42)).progress().gradient_noise, std::nullopt);
  const NoiseRecord record = {
      .noise = {.sums = {.squared_norm = 0.1 + 0.2, .variance = -1e-300 / 3}, .steps = 9},
      .phases = {{2, 1}, {4, 18}}};
  const RandomState state(42);
  CheckpointProgress progress = {8, 80, 42, 64, 1000};
  progress.gradient_noise = record;
  const std::string path =
      write_checkpoint(directory_.path(), progress, {config_, layout_, *update_rules().front()},
                       [&state](StateField field, const UnitLayout& unit, std::int64_t begin,
                                std::span<float> out) { state.read(field, unit, begin, out); });
  EXPECT_EQ(Checkpoint(path).progress().gradient_noise, record);
  edit_manifest(path, [](nlohmann::json& manifest) {
    manifest["gradient_noise"]["micro_batches_from_step"][1][1] = 1;
  });
  EXPECT_THROW(Checkpoint{path}, CorruptData);
}

TEST_F(CheckpointTest, KeepsTheDeviceWhereItIsKnown) {
  EXPECT_EQ(Checkpoint(save(7, 42)).progress().device, "");
  const std::string path = save(8, 42);
  edit_manifest(path, [](nlohmann::json& manifest) { manifest["device"] = 5; });
  TERRACE_EXPECT_THROW_WITH(Checkpoint{path}, CorruptData, "manifest.json");
  const std::string known = write_checkpoint(
      directory_.path(), {.step = 9, .device = "cuda"}, {config_, layout_, *update_rules().front()},
      [](StateField, const UnitLayout&, std::int64_t, std::span<float> out) {
        std::ranges::fill(out, 0.0F);
      });
  EXPECT_EQ(Checkpoint(known).progress().device, "cuda");
}

TEST_F(CheckpointTest, KeepsTheHashOfTheDataWhereItIsKnown) {
  EXPECT_EQ(Checkpoint(save(7, 42)).progress().data_hash, std::nullopt);
  const std::string known =
      write_checkpoint(directory_.path(), {.step = 9, .data_hash = 0xfedcba9876543210U},
                       {config_, layout_, *update_rules().front()},
                       [](StateField, const UnitLayout&, std::int64_t, std::span<float> out) {
                         std::ranges::fill(out, 0.0F);
                       });
  EXPECT_EQ(Checkpoint(known).progress().data_hash, 0xfedcba9876543210U);
  edit_manifest(known, [](nlohmann::json& manifest) { manifest["data_xxh3"] = "12"; });
  TERRACE_EXPECT_THROW_WITH(Checkpoint{known}, CorruptData, "12 is not a checksum");
}

// Damage is found where it is read. Data elsewhere can still be read.
TEST_F(CheckpointTest, NamesThePieceThatIsDamaged) {
  const std::string path = save(7, 42);
  damage(path + "/exp_avg-00001.safetensors", 4);
  Checkpoint checkpoint(path);
  checkpoint.open(layout_);
  const UnitLayout& unit = layout_[1];
  std::vector<float> out(10);
  checkpoint.read(StateField::kMaster, unit, unit.elements - 10, out);
  checkpoint.read(StateField::kSlot0, layout_[2], 0, out);
  const auto bytes = static_cast<std::uint64_t>(unit.elements) * sizeof(float);
  TERRACE_EXPECT_THROW_WITH(
      checkpoint.read(StateField::kSlot0, unit, unit.elements - 10, out), CorruptData,
      fmt::format("exp_avg-00001.safetensors: the {} bytes at offset 4096 ", bytes));
}

TEST_F(CheckpointTest, AFileOfAnotherSizeIsFoundBeforeAnythingIsRead) {
  const std::string path = save(7, 42);
  fs::resize_file(path + "/exp_avg_sq-00003.safetensors", 5000);
  Checkpoint checkpoint(path);
  TERRACE_EXPECT_THROW_WITH(checkpoint.open(layout_), CorruptData, "has 5000 bytes");
}

TEST_F(CheckpointTest, OfFilesWithoutPiecesIsVerifiedWhole) {
  const std::string path = save(7, 42);
  forget_pieces(path);
  Checkpoint checkpoint(path);
  checkpoint.open(layout_);
  expect_reads_back(checkpoint, 42);

  damage(path + "/exp_avg-00001.safetensors", 4);
  Checkpoint damaged(path);
  TERRACE_EXPECT_THROW_WITH(damaged.open(layout_), CorruptData, "exp_avg-00001.safetensors");
}

TEST_F(CheckpointTest, AManifestThatWasChangedIsRefused) {
  const std::string path = save(7, 42);
  nlohmann::json manifest = nlohmann::json::parse(std::ifstream(path + "/manifest.json"));
  manifest["step"] = 8;
  std::ofstream(path + "/manifest.json") << manifest.dump(1);
  TERRACE_EXPECT_THROW_WITH(Checkpoint{path}, CorruptData, "its checksum differs");
}

TEST_F(CheckpointTest, AnotherVersionsIsNamedAndNotCalledDamaged) {
  const std::string path = save(7, 42);
  edit_manifest(path,
                [](nlohmann::json& manifest) { manifest["schema"] = "terrace.checkpoint/3"; });
  TERRACE_EXPECT_THROW_WITH(Checkpoint{path}, ConfigError, "terrace.checkpoint/3");
  edit_manifest(path, [](nlohmann::json& manifest) { manifest["schema"] = 2; });
  TERRACE_EXPECT_THROW_WITH(Checkpoint{path}, CorruptData, "not a manifest");
}

// The manifest has the right checksum, as anybody can write one.
TEST_F(CheckpointTest, AManifestThatCannotBeRightIsRefused) {
  const auto refuses = [&](const char* message, FunctionRef<void(nlohmann::json&)> edit) {
    const std::string path = save(7, 42);
    edit_manifest(path, edit);
    TERRACE_EXPECT_THROW_WITH(Checkpoint{path}, CorruptData, message);
  };
  const auto pieces = [](nlohmann::json& manifest) -> nlohmann::json& {
    return manifest["files"][0]["pieces"];
  };
  refuses("do not cover the whole file", [&](nlohmann::json& manifest) {
    pieces(manifest)["xxh3"] = pieces(manifest)["xxh3"].get<std::string>().substr(16);
  });
  refuses("not a whole number",
          [&](nlohmann::json& manifest) { pieces(manifest)["size"] = 1e300; });
  refuses("not a whole number", [](nlohmann::json& manifest) { manifest["seed"] = -1; });
  // The size is so large that the number of pieces, computed carelessly, is 1.
  refuses("do not cover the whole file", [&](nlohmann::json& manifest) {
    pieces(manifest)["size"] = ~std::uint64_t{0};
    pieces(manifest)["xxh3"] = pieces(manifest)["xxh3"].get<std::string>().substr(0, 16);
  });
  refuses("do not cover the whole file",
          [&](nlohmann::json& manifest) { pieces(manifest)["header_size"] = 1ULL << 40; });
  refuses("is not a checksum", [](nlohmann::json& manifest) {
    manifest["files"][0]["xxh3"] = manifest["files"][0]["xxh3"].get<std::string>() + "0";
  });
  refuses("step is -3", [](nlohmann::json& manifest) { manifest["step"] = -3; });
  refuses("step is 0", [](nlohmann::json& manifest) { manifest["step"] = 0; });
  refuses("samples is -1", [](nlohmann::json& manifest) { manifest["samples"] = -1; });
  refuses("samples is 18446744073709551615",
          [](nlohmann::json& manifest) { manifest["samples"] = ~std::uint64_t{0}; });
  refuses("step is 7.5", [](nlohmann::json& manifest) { manifest["step"] = 7.5; });
  for (const char* name : {"../manifest.json", "/etc/passwd", "..", ""}) {
    refuses("is not the name of a file",
            [name](nlohmann::json& manifest) { manifest["files"][0]["name"] = name; });
  }
  refuses("does not list config.json", [](nlohmann::json& manifest) {
    std::erase_if(manifest["files"].get_ref<nlohmann::json::array_t&>(),
                  [](const nlohmann::json& file) { return file["name"] == "config.json"; });
  });
}

// When a run goes on from a checkpoint, later ones are removed by their names.
TEST_F(CheckpointTest, UnderTheNameOfAnotherStepIsRefused) {
  const std::string path = save(6, 42);
  fs::rename(path, directory_.path("checkpoint-9"));
  TERRACE_EXPECT_THROW_WITH(Checkpoint(directory_.path("checkpoint-9")), CorruptData,
                            "is the checkpoint of step 6");
  fs::rename(directory_.path("checkpoint-9"), directory_.path("best"));
  EXPECT_EQ(Checkpoint(directory_.path("best")).progress().step, 6);
}

TEST_F(CheckpointTest, WhatHasNoNameOfAStepIsNotTheLatest) {
  const std::string path = save(6, 42);
  for (const char* name : {"checkpoint-06", "checkpoint-+6", "checkpoint--6", "checkpoint-6 "}) {
    fs::rename(path, directory_.path(name));
    EXPECT_EQ(latest_checkpoint(directory_.path()), std::nullopt) << name;
    fs::rename(directory_.path(name), path);
  }
  EXPECT_EQ(latest_checkpoint(directory_.path()), path);
}

// The checkpoint exists, but cannot be looked at. A loop of links stops even root.
TEST_F(CheckpointTest, ThatCannotBeLookedAtIsNotPassedOver) {
  const std::string path = save(6, 42);
  save(4, 42);
  fs::remove(path + "/manifest.json");
  fs::create_symlink("manifest.json", path + "/manifest.json");
  EXPECT_THROW(latest_checkpoint(directory_.path()), IoError);
}

// The files that were read under the first layout have been closed.
TEST_F(CheckpointTest, OpensAgainAfterALayoutThatWasWrong) {
  ModelConfig other = config_;
  other.intermediate += 8;
  Checkpoint checkpoint(save(7, 42));
  EXPECT_THROW(checkpoint.open(parameter_layout(other)), ConfigError);
  checkpoint.open(layout_);
  expect_reads_back(checkpoint, 42);
}

TEST_F(CheckpointTest, FingerprintsTellCheckpointsApart) {
  const Checkpoint one(save(7, 42));
  const std::uint64_t first = one.fingerprint();
  EXPECT_EQ(Checkpoint(save(7, 42)).fingerprint(), first);
  EXPECT_NE(Checkpoint(save(7, 43)).fingerprint(), first);
}

// Tensors that the model lacks are not dropped.
TEST_F(CheckpointTest, RefusesAModelThatHasLess) {
  ModelConfig config = config_;
  config.has_qkv_bias = config.has_projection_bias = true;
  const std::vector<UnitLayout> layout = parameter_layout(config);
  const std::string path = write_checkpoint(
      directory_.path(), {6, 60, 42, 64, 1000}, {config, layout, *update_rules().front()},
      [](StateField, const UnitLayout&, std::int64_t, std::span<float> out) {
        std::ranges::fill(out, 0.0F);
      });
  Checkpoint checkpoint(path);
  TERRACE_EXPECT_THROW_WITH(checkpoint.open(layout_), ConfigError,
                            "has 13 tensors, but the model has 9 there");
}

TEST_F(CheckpointTest, RefusesAnotherModel) {
  const std::string path = save(1, 1);
  ModelConfig other = config_;
  other.intermediate += 8;
  Checkpoint checkpoint(path);
  EXPECT_THROW(checkpoint.open(parameter_layout(other)), ConfigError);
}

TEST_F(CheckpointTest, ACrashInTheMiddleOfASaveIsCleared) {
  const std::string first = save(1, 1);
  const std::string second = save(2, 2);
  // The old checkpoint was moved aside, and the new one is not there yet: the old one comes back.
  fs::rename(second, second + ".old");
  fs::create_directory(directory_.path("checkpoint-3.writing"));
  fs::create_directory(directory_.path("checkpoint-1.old"));
  EXPECT_EQ(latest_checkpoint(directory_.path()), first);
  recover_run_directory(directory_.path());
  EXPECT_EQ(latest_checkpoint(directory_.path()), second);
  EXPECT_FALSE(directory_.has("checkpoint-3.writing"));
  EXPECT_FALSE(directory_.has("checkpoint-1.old"));
  Checkpoint checkpoint(second);
  checkpoint.open(layout_);
}

TEST_F(CheckpointTest, SavingAStepAgainReplacesIt) {
  save(3, 1);
  Checkpoint checkpoint(save(3, 9));
  EXPECT_EQ(checkpoint.progress().seed, 9U);
  checkpoint.open(layout_);
  EXPECT_FALSE(directory_.has("checkpoint-3.old"));
}

TEST_F(CheckpointTest, OldOnesAreRemovedUpToTheLatest) {
  for (const std::int64_t step : {5, 10, 15}) save(step, 1);
  remove_old_checkpoints(directory_.path(), 2);
  EXPECT_FALSE(directory_.has("checkpoint-5"));
  EXPECT_TRUE(directory_.has("checkpoint-10"));
  EXPECT_TRUE(directory_.has("checkpoint-15"));
}

// The drive becomes full at some write, and may or may not say so before. Whichever write it is,
// the checkpoint before stays whole, nothing is left of the new one, and with room it is written.
TEST_F(CheckpointTest, AFullDiskLeavesTheEarlierOneWhole) {
  const CheckpointedModel model{config_, layout_, *update_rules().front()};
  const RandomState state(43);
  const auto fetch = [&state](StateField field, const UnitLayout& unit, std::int64_t begin,
                              std::span<float> out) { state.read(field, unit, begin, out); };
  const std::string before = save(7, 42);
  const std::uint64_t one = checkpoint_bytes(model);
  for (const bool tells : {false, true}) {
    for (std::uint64_t room = 0; room < 20; room += tells ? 19 : 1) {
      FullDiskFiles disk(directory_.path(), one + room * (one / 24), tells);
      for (const std::int64_t step :
           {7, 8}) {  // in the place of the one that is there, or behind it
        try {
          write_checkpoint(directory_.path(), {step, 80, 43, 64, 1000}, model, fetch, disk);
          ADD_FAILURE() << "there was room for step " << step << " with " << room;
        } catch (const IoError& error) {
          EXPECT_TRUE(is_full_disk(error)) << error.what();
          EXPECT_FALSE(error.remedy().empty());
        }
      }
      EXPECT_EQ(disk.list(directory_.path()), std::vector<std::string>{"checkpoint-7"});
    }
  }
  Checkpoint checkpoint(before);
  checkpoint.open(layout_);
  expect_reads_back(checkpoint, 42);
  FullDiskFiles enough(directory_.path(), 2 * one, true);
  write_checkpoint(directory_.path(), {8, 80, 43, 64, 1000}, model, fetch, enough);
  EXPECT_EQ(latest_checkpoint(directory_.path()), directory_.path() + "/checkpoint-8");
  EXPECT_LT(2 * one - enough.left_bytes(), 2 * one) << "what is needed is known";
  EXPECT_GT(2 * one - enough.left_bytes(), 2 * one - one / 10) << "and not much more";
}

// Checkpoints that were asked for stay, and so does one whose manifest does not say what it is.
TEST_F(CheckpointTest, OldAutomaticOnesAreRemovedAndNoOthers) {
  for (const std::int64_t step : {1, 3, 5, 7, 9, 11}) save(step, 1, /*is_automatic=*/true);
  for (const std::int64_t step : {2, 4, 12}) save(step, 1);
  EXPECT_TRUE(Checkpoint(directory_.path("checkpoint-3")).progress().is_automatic);
  EXPECT_FALSE(Checkpoint(directory_.path("checkpoint-4")).progress().is_automatic);
  damage(directory_.path("checkpoint-1/manifest.json"), 4);
  EXPECT_EQ(automatic_checkpoints(directory_.path()), (std::vector<std::int64_t>{3, 5, 7, 9, 11}));
  remove_old_automatic_checkpoints(directory_.path(), 2, std::vector<std::int64_t>{5});
  EXPECT_EQ(automatic_checkpoints(directory_.path()), (std::vector<std::int64_t>{5, 9, 11}));
  for (const char* kept : {"checkpoint-1", "checkpoint-2", "checkpoint-4", "checkpoint-12"}) {
    EXPECT_TRUE(directory_.has(kept)) << kept;
  }
}

TEST_F(CheckpointTest, TheBestOneIsKeptBesideTheLatest) {
  for (std::int64_t step = 1; step <= 5; ++step) save(step, 42);
  remove_old_checkpoints(directory_.path(), 2, system_files(), 2);
  std::vector<std::string> left = system_files().list(directory_.path());
  std::ranges::sort(left);
  EXPECT_EQ(left, (std::vector<std::string>{"checkpoint-2", "checkpoint-4", "checkpoint-5"}));
}

}  // namespace
}  // namespace terrace
