#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/hash.h"
#include "base/json_depth.h"
#include "runtime/checkpoint/checkpoint.h"
#include "tests/fuzz/fuzz_input.h"

// Reads a checkpoint's manifest.json, as it is and with the checksum that it would have been
// written with. The checkpoint also has a config.json, and no file name leads out of it.
namespace terrace::fuzz {
namespace {

// The config of the checkpoint in corpus/manifest.
constexpr std::string_view kCheckpointConfig =
    R"({"model_type":"llama","architectures":["LlamaForCausalLM"],"hidden_size":32,)"
    R"("intermediate_size":64,"num_hidden_layers":1,"num_attention_heads":2,)"
    R"("num_key_value_heads":2,"vocab_size":256,"max_position_embeddings":64,)"
    R"("tie_word_embeddings":true})";

class TextFile final : public OpenFile {
 public:
  explicit TextFile(std::string_view text) : text_(text) {}
  std::int64_t append(std::span<const std::byte>) override { return -EROFS; }
  std::int64_t read_at(std::span<std::byte> out, std::uint64_t offset) override {
    const std::string_view rest =
        std::string_view(text_).substr(std::min<std::uint64_t>(offset, text_.size()), out.size());
    std::memcpy(out.data(), rest.data(), rest.size());
    return static_cast<std::int64_t>(rest.size());
  }
  std::int64_t size() override { return static_cast<std::int64_t>(text_.size()); }
  int sync() override { return 0; }
  int close() override { return 0; }

 private:
  std::string text_;
};

// One directory, with files that are only read.
class OneDirectory final : public FileSystem {
 public:
  static constexpr std::string_view kPath = "/run/checkpoint";

  explicit OneDirectory(std::string_view manifest)
      : files_{{"manifest.json", std::string(manifest)},
               {"config.json", std::string(kCheckpointConfig)}} {}

  Opened open(const std::string& path) override {
    const auto file = files_.find(name_of(path));
    if (file == files_.end()) return {nullptr, ENOENT};
    return {std::make_unique<TextFile>(file->second), 0};
  }
  bool exists(const std::string& path) override { return files_.contains(name_of(path)); }
  std::vector<std::string> list(const std::string&) override { return {}; }
  Opened create(const std::string&) override { return {nullptr, EROFS}; }
  int make_directory(const std::string&) override { return EROFS; }
  int rename(const std::string&, const std::string&) override { return EROFS; }
  int remove(const std::string&) override { return EROFS; }
  int sync_directory(const std::string&) override { return EROFS; }
  std::optional<std::uint64_t> free_bytes(const std::string&) override { return std::nullopt; }

 private:
  static std::string name_of(const std::string& path) {
    const std::string directory = std::string(kPath) + "/";
    expect(path.starts_with(directory), "a path is in the checkpoint");
    const std::string name = path.substr(directory.size());
    expect(name.find('/') == std::string::npos && name != "..", "it is a file of the checkpoint");
    return name;
  }

  std::map<std::string, std::string, std::less<>> files_;
};

void open_checkpoint(std::string_view manifest) {
  may_refuse([&] {
    OneDirectory disk(manifest);
    const Checkpoint checkpoint(std::string(OneDirectory::kPath), disk);
  });
}

// Returns the manifest with the hash of its text without the hash, as checkpoints are written.
std::string with_hash(nlohmann::json manifest) {
  manifest.erase("xxh3");
  const std::string text = manifest.dump();
  manifest["xxh3"] = fmt::format("{:016x}", hash_bytes(std::as_bytes(std::span(text))));
  return manifest.dump();
}

}  // namespace
}  // namespace terrace::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace terrace;
  const std::string_view text = fuzz::text_of(data, size);
  fuzz::open_checkpoint(text);
  if (nests_deeper(text)) return 0;
  const auto manifest = nlohmann::json::parse(text, nullptr, false);
  if (manifest.is_object()) fuzz::open_checkpoint(fuzz::with_hash(manifest));
  return 0;
}
