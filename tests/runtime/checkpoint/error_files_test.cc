#include "runtime/checkpoint/error_files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "runtime/checkpoint/checkpoint.h"
#include "tests/runtime/checkpoint/full_disk_files.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

// Two stages with two data-parallel ranks each. The first stage has more than a piece of errors.
GradientErrors two_stages() {
  return {.data_ranks = 2,
          .tensor_ranks = 1,
          .virtual_stages = 1,
          .piece_begins = {0, 2, 5},
          .chunks_hash = 0xfedcba9876543210U,
          .stage_bytes = {5 * kHashPieceBytes + 7, 1000}};
}

std::byte byte_of(std::int32_t rank, std::uint64_t at) {
  return static_cast<std::byte>((at * 31 + at / 4096 + static_cast<std::uint64_t>(rank) * 17) &
                                0xff);
}

class ErrorFiles : public testing::Test {
 protected:
  std::string save(std::int64_t step, const std::optional<GradientErrors>& errors,
                   FileSystem& disk = system_files()) const {
    std::optional<CheckpointedErrors> fetched;
    if (errors) fetched = {*errors, fetch};
    return write_checkpoint(
        directory_.path(), {.step = step}, model(fetched ? &*fetched : nullptr),
        [](StateField, const UnitLayout&, std::int64_t, std::span<float> out) {
          std::ranges::fill(out, 0.25F);
        },
        disk);
  }

  CheckpointedModel model(const CheckpointedErrors* errors) const {
    return {config_, layout_, *update_rules().front(), {}, errors};
  }

  static void fetch(std::int32_t rank, std::uint64_t begin, std::span<std::byte> out) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = byte_of(rank, begin + i);
  }

  // Returns the bytes of a rank's errors as a checkpoint gives them.
  static std::vector<std::byte> read(Checkpoint& checkpoint, std::int32_t rank) {
    const std::unique_ptr<OpenFile> file = checkpoint.open_errors(rank);
    std::vector<std::byte> bytes(static_cast<std::size_t>(file->size()));
    read_fully(*file, error_file_name(rank), 0, bytes);
    return bytes;
  }

  static std::vector<std::byte> written(const GradientErrors& errors, std::int32_t rank) {
    std::vector<std::byte> bytes(errors.bytes_of_rank(rank));
    fetch(rank, 0, bytes);
    return bytes;
  }

  // Changes what the manifest says of errors, and makes the manifest's checksum right again.
  static void edit(const std::string& path, const std::function<void(nlohmann::json&)>& change) {
    nlohmann::json manifest = nlohmann::json::parse(std::ifstream(path + "/manifest.json"));
    manifest.erase("xxh3");
    change(manifest);
    const std::string text = manifest.dump();
    manifest["xxh3"] =
        fmt::format("{:016x}", hash_bytes(std::as_bytes(std::span(text.data(), text.size()))));
    std::ofstream(path + "/manifest.json") << manifest.dump(1);
  }

  const TemporaryDirectory directory_;
  const ModelConfig config_ = load_model_config("nano");
  const std::vector<UnitLayout> layout_ = parameter_layout(config_);
};

TEST_F(ErrorFiles, HaveTheBytesOfEachRank) {
  const GradientErrors errors = two_stages();
  Checkpoint checkpoint(save(7, errors));
  EXPECT_EQ(checkpoint.gradient_errors(), errors);
  checkpoint.open(layout_);
  for (std::int32_t rank = 0; rank < 4; ++rank) {
    EXPECT_TRUE(read(checkpoint, rank) == written(errors, rank)) << rank;
  }
}

// A stage whose parameters do not train has no errors.
TEST_F(ErrorFiles, AreThereOnlyForRanksThatHaveErrors) {
  GradientErrors errors = two_stages();
  errors.stage_bytes[0] = 0;
  const std::string path = save(7, errors);
  for (std::int32_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(fs::exists(path + "/" + error_file_name(rank)), rank >= 2) << rank;
  }
  Checkpoint checkpoint(path);
  EXPECT_EQ(checkpoint.gradient_errors(), errors);
  EXPECT_TRUE(read(checkpoint, 3) == written(errors, 3));
}

// All else of the checkpoint is as it is without them.
TEST_F(ErrorFiles, ChangeNothingElseInTheManifest) {
  const std::string plain = save(7, std::nullopt);
  EXPECT_EQ(Checkpoint(plain).gradient_errors(), std::nullopt);
  const auto manifest_of = [](const std::string& path) {
    return nlohmann::json::parse(std::ifstream(path + "/manifest.json"));
  };
  nlohmann::json before = manifest_of(plain);
  EXPECT_FALSE(before.contains("gradient_errors"));
  nlohmann::json after = manifest_of(save(7, two_stages()));
  after.erase("gradient_errors");
  std::erase_if(after["files"].get_ref<nlohmann::json::array_t&>(), [](const nlohmann::json& file) {
    return file.at("name").get<std::string>().starts_with("errors-");
  });
  for (nlohmann::json* manifest : {&before, &after}) manifest->erase("xxh3");
  EXPECT_EQ(before, after);
}

TEST_F(ErrorFiles, DamageIsFoundWhereItIsRead) {
  const GradientErrors errors = two_stages();
  const std::string path = save(7, errors);
  const std::string file = path + "/errors-00001.bin";
  {
    std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(static_cast<std::streamoff>(2 * kHashPieceBytes + 5));
    bytes.put(static_cast<char>(~byte_of(1, 2 * kHashPieceBytes + 5)));
  }
  Checkpoint checkpoint(path);
  checkpoint.open(layout_);
  EXPECT_TRUE(read(checkpoint, 0) == written(errors, 0));
  TERRACE_EXPECT_THROW_WITH(read(checkpoint, 1), CorruptData,
                            fmt::format("errors-00001.bin: the {} bytes at offset {} ",
                                        kHashPieceBytes, 2 * kHashPieceBytes));
  fs::resize_file(file, 5000);
  TERRACE_EXPECT_THROW_WITH(Checkpoint(path).open(layout_), CorruptData,
                            "errors-00001.bin has 5000 bytes");
  fs::remove(file);
  TERRACE_EXPECT_THROW_WITH(Checkpoint(path).open(layout_), CorruptData,
                            "errors-00001.bin does not exist");
}

TEST_F(ErrorFiles, AManifestThatDoesNotFitThemIsRefused) {
  const auto refused = [this](const char* named, const std::function<void(nlohmann::json&)>& edit) {
    const std::string path = save(7, two_stages());
    this->edit(path, edit);
    TERRACE_EXPECT_THROW_WITH(Checkpoint{path}, CorruptData, named);
  };
  refused("errors-00003.bin", [](nlohmann::json& manifest) {
    std::erase_if(manifest["files"].get_ref<nlohmann::json::array_t&>(),
                  [](const auto& file) { return file.at("name") == "errors-00003.bin"; });
  });
  refused("errors-00002.bin of 999 bytes",
          [](nlohmann::json& manifest) { manifest["gradient_errors"]["stage_bytes"][1] = 999; });
  refused("errors-00004.bin", [](nlohmann::json& manifest) {
    manifest["gradient_errors"]["stage_bytes"].push_back(1000);
  });
  refused("data_ranks",
          [](nlohmann::json& manifest) { manifest["gradient_errors"]["data_ranks"] = 0; });
  refused("1000000 ranks each", [](nlohmann::json& manifest) {
    manifest["gradient_errors"]["data_ranks"] = 1000;
    manifest["gradient_errors"]["tensor_ranks"] = 1000;
  });
  refused("12 is not a checksum",
          [](nlohmann::json& manifest) { manifest["gradient_errors"]["chunks_xxh3"] = "12"; });
  refused("stage_bytes",
          [](nlohmann::json& manifest) { manifest["gradient_errors"].erase("stage_bytes"); });
}

// No checkpoint is begun that has room for all but its errors.
TEST_F(ErrorFiles, NeedRoom) {
  const CheckpointedErrors errors = {two_stages(), fetch};
  const std::uint64_t data = 2 * (errors.of.stage_bytes[0] + errors.of.stage_bytes[1]);
  const std::uint64_t plain = checkpoint_bytes(model(nullptr));
  const std::uint64_t needed = checkpoint_bytes(model(&errors));
  EXPECT_LT(plain + data, needed);
  EXPECT_LT(needed, plain + data + 100'000);
  FullDiskFiles too_small(directory_.path(), needed - 1, /*tells=*/true);
  TERRACE_EXPECT_THROW_WITH(save(7, two_stages(), too_small), IoError, "are free");
  FullDiskFiles enough(directory_.path(), needed, /*tells=*/true);
  EXPECT_EQ(Checkpoint(save(7, two_stages(), enough)).gradient_errors(), two_stages());
}

}  // namespace
}  // namespace terrace
