#include "runtime/checkpoint/hf_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/half.h"
#include "base/hash.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingleFile = "model.safetensors";
constexpr std::size_t kBufferBytes = 1 << 20;
constexpr std::size_t kNamesShown = 8;

bool has_pickled_weights(const std::string& directory) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("pytorch_model") && name.ends_with(".bin")) return true;
  }
  return false;
}

float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t magnitude = bits & 0x7fffU;
  if (magnitude >= 0x7c00U) {  // infinity, NaN
    return std::bit_cast<float>(sign | 0x7f800000U | (magnitude & 0x3ffU) << 13);
  }
  if (magnitude < 0x400U) {  // zero, subnormal: a multiple of 2^-24
    const float value = static_cast<float>(magnitude) * 0x1.0p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + (112U << 23)));
}

bool is_loadable(SafetensorsType type) {
  return type == SafetensorsType::kF32 || type == SafetensorsType::kBF16 ||
         type == SafetensorsType::kF16;
}

// Elements [first, first + out.size()) as they lie in the file.
void read_stored(const SafetensorsFile& file, const SafetensorsTensor& tensor, std::int64_t first,
                 std::span<float> out) {
  const std::uint64_t width = bits_of(tensor.type) / 8;
  auto byte = static_cast<std::uint64_t>(first) * width;
  if (tensor.type == SafetensorsType::kF32)
    return file.read(tensor, byte, std::as_writable_bytes(out));
  std::vector<std::uint16_t> buffer(std::min(out.size(), kBufferBytes / 2));
  while (!out.empty()) {
    const auto part = std::span(buffer).first(std::min(buffer.size(), out.size()));
    file.read(tensor, byte, std::as_writable_bytes(part));
    for (std::size_t i = 0; i < part.size(); ++i) {
      out[i] =
          tensor.type == SafetensorsType::kBF16 ? to_float(Bf16{part[i]}) : half_to_float(part[i]);
    }
    out = out.subspan(part.size());
    byte += part.size_bytes();
  }
}

bool is_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && fs::path(name).filename() == name;
}

nlohmann::json read_index(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw IoError({.operation = "open", .path = path.string(), .error_number = errno});
  nlohmann::json index = nlohmann::json::parse(stream, nullptr, /*allow_exceptions=*/false);
  if (index.is_discarded() || !index.is_object() || !index.contains("weight_map") ||
      !index.at("weight_map").is_object()) {
    throw CorruptData(fmt::format("{}: not an index of safetensors files", path.string()),
                      "fetch the file again");
  }
  return std::move(index.at("weight_map"));
}

// Masks and tables that old files carry and that are computed here.
bool is_known_buffer(const std::string& name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq");
}

std::vector<std::uint64_t> shape_on_disk(const ParameterTensor& tensor) {
  const auto rows = static_cast<std::uint64_t>(tensor.rows);
  const auto columns = static_cast<std::uint64_t>(tensor.columns);
  if (tensor.is_vector) return {rows};
  if (tensor.stored_transposed) return {columns, rows};
  return {rows, columns};
}

void check_tensor(const std::string& directory, const SafetensorsTensor& stored,
                  const ParameterTensor& tensor) {
  if (!is_loadable(stored.type)) {
    throw ConfigError(
        fmt::format("{}: tensor {} is {}", directory, stored.name, name_of(stored.type)),
        "convert the weights to F32, BF16 or F16");
  }
  const std::vector<std::uint64_t> wanted = shape_on_disk(tensor);
  if (stored.shape != wanted) {
    throw ConfigError(
        fmt::format("{}: tensor {} is [{}], and config.json makes it [{}]", directory, stored.name,
                    fmt::join(stored.shape, ", "), fmt::join(wanted, ", ")),
        "weights and config.json are not of one model");
  }
}

bool same_bytes(const SafetensorsFile& a_file, const SafetensorsTensor& a,
                const SafetensorsFile& b_file, const SafetensorsTensor& b) {
  if (a.type != b.type || a.shape != b.shape) return false;
  std::vector<std::byte> a_bytes(kBufferBytes);
  std::vector<std::byte> b_bytes(kBufferBytes);
  for (std::uint64_t at = 0; at < a.size_bytes(); at += kBufferBytes) {
    const std::size_t size = std::min<std::uint64_t>(kBufferBytes, a.size_bytes() - at);
    a_file.read(a, at, std::span(a_bytes).first(size));
    b_file.read(b, at, std::span(b_bytes).first(size));
    if (!std::equal(a_bytes.begin(), a_bytes.begin() + size, b_bytes.begin())) return false;
  }
  return true;
}

}  // namespace

bool has_hf_weights(const std::string& directory) {
  std::error_code ignored;
  if (fs::exists(fs::path(directory) / kHfIndexFile, ignored)) return true;
  if (fs::exists(fs::path(directory) / kSingleFile, ignored)) return true;
  if (has_pickled_weights(directory)) {
    throw ConfigError(fmt::format("{}: has pytorch_model*.bin and no safetensors", directory),
                      "convert once: transformers' from_pretrained(...).save_pretrained(..., "
                      "safe_serialization=True), or start from --init random");
  }
  return false;
}

std::string why_bytes_are_foreign(const std::string& directory, const ModelConfig& config) {
  constexpr std::int64_t kByteIds = 256;
  std::error_code ignored;
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.json"}) {
    if (!fs::exists(fs::path(directory) / name, ignored)) continue;
    return fmt::format(
        "text is taken as bytes, ids 0 to 255, and {} has a tokenizer of its own, {}", directory,
        name);
  }
  if (config.vocabulary == kByteIds) return "";
  return fmt::format(
      "text is taken as bytes, ids 0 to 255, and the vocabulary of {} is {}: unless "
      "it was trained on bytes, they mean something else to it",
      directory, config.vocabulary);
}

std::vector<HfCompanion> read_hf_companions(const std::string& directory, Log& log) {
  std::vector<HfCompanion> companions;
  std::error_code ignored;
  if (!fs::exists(fs::path(directory) / "config.json", ignored)) return companions;  // a preset
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                           "added_tokens.json", "tokenizer.model", "vocab.json", "merges.txt",
                           "chat_template.jinja", "generation_config.json"}) {
    const std::string path = (fs::path(directory) / name).string();
    try {
      if (!system_files().exists(path)) continue;
      companions.push_back({name, read_whole_file(system_files(), path)});
    } catch (const IoError& problem) {
      log.warning(fmt::format("{}: the result will be without it", problem.what()));
    }
  }
  return companions;
}

HfDirectory::HfDirectory(std::string directory, const ModelConfig& config,
                         const std::vector<UnitLayout>& layout, Log& log)
    : directory_(std::move(directory)) {
  if (!has_hf_weights(directory_)) {
    throw ConfigError(fmt::format("{}: neither {} nor {}", directory_, kSingleFile, kHfIndexFile),
                      "choose a directory with weights, or start from --init random");
  }
  open_indexed();
  for (const UnitLayout& unit : layout) {
    for (const ParameterTensor& tensor : unit.tensors) {
      const Place place = locate(tensor.name);
      if (place.tensor == nullptr) {
        const bool head = tensor.name == "lm_head.weight";
        throw ConfigError(fmt::format("{}: tensor {} is not in the files", directory_, tensor.name),
                          head ? "if the head is the embedding, config.json must say "
                                 "\"tie_word_embeddings\": true"
                               : "the files are incomplete, or not of the model in config.json");
      }
      check_tensor(directory_, *place.tensor, tensor);
      parameters_[tensor.name] = place;
    }
  }
  if (config.tied) check_tied_head(config, log);
  report_unexpected(config, log);
}

void HfDirectory::open_indexed() {
  const fs::path index_path = fs::path(directory_) / kHfIndexFile;
  std::error_code ignored;
  if (!fs::exists(index_path, ignored)) {
    open_file(kSingleFile);
    return;
  }
  const nlohmann::json map = read_index(index_path);
  std::unordered_map<std::string, std::string> file_of;
  std::vector<std::string> names;
  for (const auto& [tensor, file] : map.items()) {
    if (!file.is_string() || !is_file_name(file.get<std::string>())) {
      throw CorruptData(fmt::format("{}: tensor {} is in {}, which is not a file name",
                                    index_path.string(), tensor, file.dump()),
                        "fetch the file again");
    }
    file_of[tensor] = file.get<std::string>();
    names.push_back(file.get<std::string>());
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  for (const std::string& name : names) open_file(name);
  for (const auto& [tensor, file] : file_of) {
    const auto found = stored_.find(tensor);
    if (found == stored_.end() || fs::path(found->second.file->path()).filename() != file) {
      throw CorruptData(fmt::format("{}: tensor {} is not in {}, where the index has it",
                                    directory_, tensor, file),
                        "fetch the files again");
    }
  }
}

void HfDirectory::open_file(const std::string& name) {
  const fs::path path = fs::path(directory_) / name;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    throw ConfigError(fmt::format("{}: is not there, and the index names it", path.string()),
                      "the download is incomplete, or the index is older than the files: fetch "
                      "them again");
  }
  files_.push_back(std::make_unique<SafetensorsFile>(path.string()));
  const SafetensorsFile& file = *files_.back();
  for (const SafetensorsTensor& tensor : file.header().tensors) {
    const auto [place, added] = stored_.try_emplace(tensor.name, Place{&file, &tensor});
    if (!added) {
      throw CorruptData(fmt::format("tensor {} is in {} and in {}", tensor.name,
                                    place->second.file->path(), file.path()),
                        "remove the files that do not belong to the model");
    }
  }
}

HfDirectory::Place HfDirectory::locate(const std::string& name) const {
  constexpr std::string_view kOfLlama = "model.";
  auto found = stored_.find(name);
  if (found == stored_.end()) found = stored_.find("transformer." + name);
  if (found == stored_.end() && name.starts_with(kOfLlama)) {
    found = stored_.find(name.substr(kOfLlama.size()));
  }
  return found == stored_.end() ? Place{} : found->second;
}

void HfDirectory::check_tied_head(const ModelConfig& config, Log& log) const {
  const Place head = locate("lm_head.weight");
  if (head.tensor == nullptr) return;
  const bool gpt2 = config.family == ModelFamily::kGpt2;
  const Place embedding = locate(gpt2 ? "wte.weight" : "model.embed_tokens.weight");
  if (!same_bytes(*head.file, *head.tensor, *embedding.file, *embedding.tensor)) {
    log.warning(fmt::format(
        "{}: lm_head.weight differs from the embedding, and config.json ties them: it is not used",
        directory_));
  }
}

void HfDirectory::report_unexpected(const ModelConfig& config, Log& log) const {
  std::vector<std::string> used;
  for (const auto& [name, place] : parameters_) used.push_back(place.tensor->name);
  std::sort(used.begin(), used.end());
  std::vector<std::string> unexpected;
  for (const auto& [name, place] : stored_) {
    if (std::binary_search(used.begin(), used.end(), name) || is_known_buffer(name)) continue;
    if (config.tied && name.ends_with("lm_head.weight")) continue;
    unexpected.push_back(name);
  }
  if (unexpected.empty()) return;
  std::sort(unexpected.begin(), unexpected.end());
  const std::size_t total = unexpected.size();
  unexpected.resize(std::min(total, kNamesShown));
  log.warning(fmt::format("{}: {} tensors are not part of the model and are not used: {}{}",
                          directory_, total, fmt::join(unexpected, ", "),
                          total > kNamesShown ? ", ..." : ""));
}

void HfDirectory::read(const ParameterTensor& tensor, std::int64_t begin,
                       std::span<float> out) const {
  TERRACE_CHECK_LE(0, begin);
  TERRACE_CHECK_LE(begin + static_cast<std::int64_t>(out.size()), tensor.elements());
  const auto found = parameters_.find(tensor.name);
  TERRACE_CHECK(found != parameters_.end());
  if (out.empty()) return;
  if (tensor.stored_transposed) return read_transposed(found->second, tensor, begin, out);
  read_stored(*found->second.file, *found->second.tensor, begin, out);
}

std::uint64_t HfDirectory::fingerprint() const {
  constexpr std::uint64_t kSampleBytes = 64 << 10;
  std::vector<std::string> names;
  for (const auto& [name, place] : parameters_) names.push_back(name);
  std::ranges::sort(names);
  StreamingHash hash;
  std::vector<std::byte> sample;
  for (const std::string& name : names) {
    const auto& [file, tensor] = parameters_.at(name);
    const std::string header =
        fmt::format("{} {} [{}]", name, name_of(tensor->type), fmt::join(tensor->shape, ", "));
    hash.add(std::as_bytes(std::span(header)));
    sample.resize(std::min(kSampleBytes, tensor->size_bytes()));
    const std::uint64_t last = tensor->size_bytes() - sample.size();
    for (const std::uint64_t at : {std::uint64_t{0}, last / 2, last}) {
      file->read(*tensor, at, sample);
      hash.add(sample);
    }
  }
  return hash.value();
}

void HfDirectory::read_transposed(const Place& place, const ParameterTensor& tensor,
                                  std::int64_t begin, std::span<float> out) const {
  const std::int64_t rows = tensor.rows;
  const std::int64_t columns = tensor.columns;
  const std::int64_t end = begin + static_cast<std::int64_t>(out.size());
  // Columns of ours, which are the file's rows, that fit the buffer.
  const std::int64_t slab = std::max<std::int64_t>(1, kBufferBytes / 4 / rows);
  std::vector<float> buffer(static_cast<std::size_t>(std::min(slab, columns) * rows));
  for (std::int64_t c0 = 0; c0 < columns; c0 += slab) {
    const std::int64_t c1 = std::min(columns, c0 + slab);
    read_stored(*place.file, *place.tensor, c0 * rows,
                std::span(buffer).first(static_cast<std::size_t>((c1 - c0) * rows)));
    for (std::int64_t r = begin / columns; r * columns < end; ++r) {
      const std::int64_t first = std::max(c0, begin - r * columns);
      const std::int64_t last = std::min(c1, end - r * columns);
      for (std::int64_t c = first; c < last; ++c) {
        out[r * columns + c - begin] = buffer[(c - c0) * rows + r];
      }
    }
  }
}

}  // namespace terrace
