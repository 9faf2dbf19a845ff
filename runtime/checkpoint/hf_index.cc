#include "runtime/checkpoint/hf_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/json_depth.h"
#include "base/lfs_pointer.h"
#include "runtime/checkpoint/file_system.h"
#include "runtime/checkpoint/hf_weight_files.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kComparedBytes = 1 << 20;
constexpr std::uint64_t kSampleBytes = 64 * 1024;

bool is_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && fs::path(name).filename() == name;
}

nlohmann::json read_map(const fs::path& path) {
  const std::string text = read_whole_file(system_files(), path.string());
  refuse_lfs_pointer(text, path.string());
  nlohmann::json index;
  if (!nests_deeper(text)) index = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (index.is_discarded() || !index.is_object() || !index.contains("weight_map") ||
      !index.at("weight_map").is_object()) {
    throw CorruptData(fmt::format("{}: not an index of safetensors files", path.string()),
                      "fetch the file again");
  }
  return std::move(index.at("weight_map"));
}

// Two files with a tensor in each, which share buffers.
class TensorPair {
 public:
  TensorPair(const SafetensorsFile& a_file, const SafetensorsTensor& a,
             const SafetensorsFile& b_file, const SafetensorsTensor& b)
      : a_file_(a_file), a_(a), b_file_(b_file), b_(b) {}

  bool same_header() const { return a_.type == b_.type && a_.shape == b_.shape; }
  std::uint64_t size_bytes() const { return a_.size_bytes(); }

  // Returns whether bytes [begin, begin + size) are the same, as far as the tensors reach.
  bool same_range(std::uint64_t begin, std::uint64_t size) {
    size = std::min(size, size_bytes() - begin);
    a_bytes_.resize(size);
    b_bytes_.resize(size);
    a_file_.read(a_, begin, a_bytes_);
    b_file_.read(b_, begin, b_bytes_);
    return a_bytes_ == b_bytes_;
  }

 private:
  const SafetensorsFile& a_file_;
  const SafetensorsTensor& a_;
  const SafetensorsFile& b_file_;
  const SafetensorsTensor& b_;
  std::vector<std::byte> a_bytes_;
  std::vector<std::byte> b_bytes_;
};

bool same_samples(TensorPair pair) {
  if (!pair.same_header()) return false;
  const std::uint64_t size = pair.size_bytes();
  const std::uint64_t last = size > kSampleBytes ? size - kSampleBytes : 0;
  return pair.same_range(0, kSampleBytes) && pair.same_range(last / 2, kSampleBytes) &&
         pair.same_range(last, kSampleBytes);
}

[[noreturn]] void refuse_both(const std::string& directory, const std::string& why) {
  throw ConfigError(fmt::format("{}: {} and {} belong to two models: {}", directory, kHfSingleFile,
                                kHfIndexFile, why),
                    fmt::format("remove {} and its files to load {}, or remove the latter to load "
                                "the files that the index names",
                                kHfIndexFile, kHfSingleFile));
}

void check_names(const std::string& directory, const SafetensorsFile& single,
                 const HfIndex& index) {
  for (const auto& [tensor, file] : index.file_of) {
    if (single.find(tensor) == nullptr) {
      refuse_both(directory, fmt::format("tensor {} is only in the index", tensor));
    }
  }
  for (const SafetensorsTensor& tensor : single.header().tensors) {
    if (!index.file_of.contains(tensor.name)) {
      refuse_both(directory, fmt::format("the index does not have tensor {}", tensor.name));
    }
  }
}

void check_shard(const std::string& directory, const SafetensorsFile& single,
                 const SafetensorsFile& shard) {
  for (const SafetensorsTensor& tensor : shard.header().tensors) {
    const SafetensorsTensor* const own = single.find(tensor.name);
    if (own != nullptr && same_samples({single, *own, shard, tensor})) continue;
    refuse_both(directory, fmt::format("tensor {} differs in {}", tensor.name,
                                       fs::path(shard.path()).filename().string()));
  }
}

}  // namespace

std::vector<std::string> HfIndex::files() const {
  std::set<std::string> names;
  for (const auto& [tensor, file] : file_of) names.insert(file);
  return {names.begin(), names.end()};
}

bool has_hf_index(const std::string& directory) {
  std::error_code ignored;
  return fs::is_regular_file(fs::path(directory) / kHfIndexFile, ignored);
}

HfIndex read_hf_index(const std::string& directory) {
  const fs::path path = fs::path(directory) / kHfIndexFile;
  const nlohmann::json map = read_map(path);
  HfIndex index;
  for (const auto& [tensor, file] : map.items()) {
    if (!file.is_string() || !is_file_name(file.get<std::string>())) {
      throw CorruptData(fmt::format("{}: tensor {} is in {}, which is not a file name",
                                    path.string(), tensor, file.dump()),
                        "fetch the file again");
    }
    index.file_of[tensor] = file.get<std::string>();
  }
  return index;
}

bool same_bytes(const SafetensorsFile& a_file, const SafetensorsTensor& a,
                const SafetensorsFile& b_file, const SafetensorsTensor& b) {
  TensorPair pair(a_file, a, b_file, b);
  if (!pair.same_header()) return false;
  for (std::uint64_t at = 0; at < pair.size_bytes(); at += kComparedBytes) {
    if (!pair.same_range(at, kComparedBytes)) return false;
  }
  return true;
}

void check_stale_index(const std::string& directory, const SafetensorsFile& single) {
  const HfIndex index = read_hf_index(directory);
  check_names(directory, single, index);
  for (const std::string& name : index.files()) {
    const fs::path path = fs::path(directory) / name;
    std::error_code ignored;
    if (name == kHfSingleFile || !fs::is_regular_file(path, ignored)) continue;
    try {
      check_shard(directory, single, SafetensorsFile(path.string()));
    } catch (const CorruptData& problem) {
      refuse_both(directory, problem.what());
    }
  }
}

}  // namespace terrace
