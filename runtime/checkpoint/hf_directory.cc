#include "runtime/checkpoint/hf_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/hash.h"
#include "runtime/checkpoint/hf_index.h"
#include "runtime/checkpoint/hf_weight_files.h"
#include "runtime/checkpoint/stored_values.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBufferBytes = 1 << 20;
constexpr std::size_t kUnexpectedShown = 8;

// Returns whether a tensor is a mask or a table that old files carry and that is computed here.
bool is_known_buffer(const std::string& name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq");
}

// Returns the stored name; empty where the family has no such parameter.
std::string stored_name_of(const ModelConfig& config, ParameterKind kind) {
  const ParameterName& name = config.names.at(static_cast<std::size_t>(kind));
  return name.stored.empty() ? name.name : name.stored;
}

void check_tensor(const std::string& directory, const SafetensorsTensor& stored,
                  const ParameterTensor& tensor) {
  if (!is_loadable(stored.type)) {
    throw ConfigError(
        fmt::format("{}: tensor {} is {}", directory, stored.name, name_of(stored.type)),
        "convert the weights to F32, BF16 or F16");
  }
  const std::vector<std::uint64_t> wanted = stored_shape(tensor);
  if (stored.shape != wanted) {
    throw ConfigError(
        fmt::format("{}: tensor {} is [{}], but according to config.json it should be [{}]",
                    directory, stored.name, fmt::join(stored.shape, ", "), fmt::join(wanted, ", ")),
        "the weights and config.json belong to different models");
  }
}

// Adds the first, middle and last bytes of a tensor.
void add_samples(const SafetensorsFile& file, const SafetensorsTensor& tensor,
                 StreamingHash& hash) {
  constexpr std::uint64_t kSampleBytes = 64 << 10;
  std::vector<std::byte> sample(std::min(kSampleBytes, tensor.size_bytes()));
  const std::uint64_t last = tensor.size_bytes() - sample.size();
  for (const std::uint64_t at : {std::uint64_t{0}, last / 2, last}) {
    file.read(tensor, at, sample);
    hash.add(sample);
  }
}

void add_all(const SafetensorsFile& file, const SafetensorsTensor& tensor, StreamingHash& hash) {
  std::vector<std::byte> piece(std::min<std::uint64_t>(kBufferBytes, tensor.size_bytes()));
  for (std::uint64_t at = 0; at < tensor.size_bytes(); at += piece.size()) {
    const auto part =
        std::span(piece).first(std::min<std::uint64_t>(piece.size(), tensor.size_bytes() - at));
    file.read(tensor, at, part);
    hash.add(part);
  }
}

}  // namespace

std::string why_bytes_are_foreign(const std::string& directory, const ModelConfig& config) {
  constexpr std::int64_t kByteIds = 256;
  std::error_code ignored;
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.json"}) {
    if (!fs::exists(fs::path(directory) / name, ignored)) continue;
    return fmt::format("text is read as bytes, with ids 0 to 255, but {} has its own tokenizer, {}",
                       directory, name);
  }
  if (config.vocabulary == kByteIds) return "";
  return fmt::format(
      "text is read as bytes, with ids 0 to 255, but the vocabulary of {} is {}: unless the model "
      "was trained on bytes, these ids mean something else to it",
      directory, config.vocabulary);
}

HfDirectory::HfDirectory(std::string directory, const ModelConfig& config,
                         const std::vector<UnitLayout>& layout, Log& log, FileSystem& disk)
    : directory_(std::move(directory)), disk_(disk) {
  open(log);
  find_parameters(layout);
  if (config.tied) check_tied_head(config);
  report_unexpected(config, log);
}

void HfDirectory::open(Log& log) {
  if (!has_hf_weights(directory_)) throw no_hf_weights(directory_, "choose another directory");
  const fs::path single = fs::path(directory_) / kHfSingleFile;
  std::error_code ignored;
  if (fs::is_regular_file(single, ignored)) {
    open_file(kHfSingleFile);
    if (!has_hf_index(directory_)) return;
    check_stale_index(directory_, *files_.front());
    return log.info(fmt::format("{}: {} is used; {} is not used, but does not contradict it",
                                directory_, kHfSingleFile, kHfIndexFile));
  }
  if (fs::is_symlink(single, ignored)) {
    throw ConfigError(
        fmt::format("{}: {} is a link to {}, which does not exist, and {} names other files",
                    directory_, kHfSingleFile, fs::read_symlink(single, ignored).string(),
                    kHfIndexFile),
        "remove the link to load the files that the index names, or download the model again");
  }
  open_indexed();
}

void HfDirectory::open_indexed() {
  const HfIndex index = read_hf_index(directory_);
  for (const std::string& name : index.files()) open_file(name);
  for (const auto& [tensor, file] : index.file_of) {
    const auto found = stored_.find(tensor);
    if (found == stored_.end() || fs::path(found->second.file->path()).filename() != file) {
      throw CorruptData(fmt::format("{}: tensor {} is not in {}, although the index says so",
                                    directory_, tensor, file),
                        "fetch the files again");
    }
  }
}

void HfDirectory::find_parameters(const std::vector<UnitLayout>& layout) {
  for (const UnitLayout& unit : layout) {
    for (const ParameterTensor& tensor : unit.tensors) {
      if (is_adapter(tensor.kind)) continue;  // in files of its own
      const StoredTensor found = find_stored(tensor);
      StoredTensor& stored = parameters_[tensor.stored_name];
      stored.place = found.place;
      stored.scales = found.scales;
      stored.parameters.push_back(tensor.name);
    }
  }
}

HfDirectory::StoredTensor HfDirectory::find_stored(const ParameterTensor& tensor) const {
  StoredTensor stored{locate(tensor.stored_name)};
  if (stored.place.tensor != nullptr) {
    check_tensor(directory_, *stored.place.tensor, tensor);
    return stored;
  }
  if (tensor.stored_elements) {
    stored = {locate(tensor.stored_name + kMxfp4Blocks), locate(tensor.stored_name + kMxfp4Scales)};
  }
  if (stored.place.tensor == nullptr || stored.scales.tensor == nullptr) {
    const bool head = tensor.kind == ParameterKind::kHeadWeight;
    throw ConfigError(
        fmt::format("{}: tensor {} is not in the files", directory_, tensor.stored_name),
        head ? "if the head is the embedding, config.json must contain "
               "\"tie_word_embeddings\": true"
             : "the files are incomplete, or belong to another model than config.json");
  }
  check_mxfp4(directory_, mxfp4_of(stored), tensor);
  return stored;
}

Mxfp4Tensor HfDirectory::mxfp4_of(const StoredTensor& stored) {
  return {{stored.place.file, stored.place.tensor}, {stored.scales.file, stored.scales.tensor}};
}

std::vector<HfDirectory::Place> HfDirectory::StoredTensor::places() const {
  if (is_mxfp4()) return {place, scales};
  return {place};
}

DType HfDirectory::StoredTensor::dtype() const {
  return is_mxfp4() ? DType::kBF16 : dtype_of_values(place.tensor->type);
}

std::uint64_t HfDirectory::StoredTensor::elements() const {
  return (is_mxfp4() ? 2 : 1) * place.tensor->elements();
}

void HfDirectory::open_file(const std::string& name) {
  const fs::path path = fs::path(directory_) / name;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    throw ConfigError(fmt::format("{} does not exist, but the index names it", path.string()),
                      "the download is incomplete, or the index is older than the files: fetch "
                      "them again");
  }
  files_.push_back(std::make_unique<SafetensorsFile>(path.string(), disk_));
  const SafetensorsFile& file = *files_.back();
  for (const SafetensorsTensor& tensor : file.header().tensors) {
    const auto [place, added] = stored_.try_emplace(tensor.name, Place{&file, &tensor});
    if (!added) {
      throw CorruptData(fmt::format("tensor {} is in both {} and {}", tensor.name,
                                    place->second.file->path(), file.path()),
                        "remove the files that do not belong to the model");
    }
  }
}

HfDirectory::Place HfDirectory::locate(const std::string& name) const {
  auto found = stored_.find(name);
  for (const std::string_view prefix : {"transformer.", "model."}) {
    if (found == stored_.end() && name.starts_with(prefix)) {
      found = stored_.find(name.substr(prefix.size()));
    }
  }
  return found == stored_.end() ? Place{} : found->second;
}

// Refuses a stored head that differs from the embedding. transformers 5 keeps such a head, other
// versions drop it.
void HfDirectory::check_tied_head(const ModelConfig& config) const {
  const Place head = locate(stored_name_of(config, ParameterKind::kHeadWeight));
  if (head.tensor == nullptr) return;
  const Place embedding = locate(stored_name_of(config, ParameterKind::kTokenEmbedding));
  if (same_bytes(*head.file, *head.tensor, *embedding.file, *embedding.tensor)) return;
  throw ConfigError(
      fmt::format("{}: config.json ties the head to the embedding, but {} differs from {}",
                  directory_, head.tensor->name, embedding.tensor->name),
      "write \"tie_word_embeddings\": false to config.json to keep the head, or remove the tensor "
      "from the file to drop it");
}

WeightTypes HfDirectory::types() const {
  std::map<DType, std::uint64_t> elements;
  for (const auto& [name, stored] : parameters_) {
    elements[stored.dtype()] += stored.elements();
  }
  WeightTypes types;
  types.usual =
      std::ranges::max_element(elements, {}, [](const auto& pair) { return pair.second; })->first;
  for (const auto& [name, stored] : parameters_) {
    const DType dtype = stored.dtype();
    if (dtype == types.usual) continue;
    for (const std::string& parameter : stored.parameters) types.others[parameter] = dtype;
  }
  return types;
}

void HfDirectory::report_unexpected(const ModelConfig& config, Log& log) const {
  std::vector<std::string> used;
  for (const auto& [name, stored] : parameters_) {
    for (const Place& place : stored.places()) used.push_back(place.tensor->name);
  }
  std::sort(used.begin(), used.end());
  const std::string head = stored_name_of(config, ParameterKind::kHeadWeight);
  std::vector<std::string> unexpected;
  for (const auto& [name, place] : stored_) {
    if (std::binary_search(used.begin(), used.end(), name) || is_known_buffer(name)) continue;
    if (config.tied && !head.empty() && name.ends_with(head)) continue;
    unexpected.push_back(name);
  }
  if (unexpected.empty()) return;
  std::sort(unexpected.begin(), unexpected.end());
  const std::size_t total = unexpected.size();
  unexpected.resize(std::min(total, kUnexpectedShown));
  log.warning(fmt::format("{}: {} tensors are not part of the model and are not used: {}{}",
                          directory_, total, fmt::join(unexpected, ", "),
                          total > kUnexpectedShown ? ", ..." : ""));
}

void HfDirectory::read(const ParameterTensor& tensor, std::int64_t begin,
                       std::span<float> out) const {
  TERRACE_CHECK_LE(0, begin);
  TERRACE_CHECK_LE(begin + static_cast<std::int64_t>(out.size()), tensor.elements());
  const auto found = parameters_.find(tensor.stored_name);
  TERRACE_CHECK(found != parameters_.end());
  if (out.empty()) return;
  const Place& place = found->second.place;
  if (found->second.is_mxfp4()) return read_mxfp4(mxfp4_of(found->second), tensor, begin, out);
  if (tensor.stored_transposed || tensor.stored_elements) {
    return bands_->read(*place.file, *place.tensor, tensor, begin, out);
  }
  if (tensor.addends > 1) return read_addends(*place.file, *place.tensor, begin, out);
  const std::int64_t first = tensor.stored_first_row * tensor.columns;
  read_values(*place.file, *place.tensor, first + begin, out);
}

std::uint64_t HfDirectory::fingerprint() const {
  StreamingHash hash;
  for (const auto& [name, stored] : parameters_) {
    for (const auto& [file, tensor] : stored.places()) {
      const std::string header =
          fmt::format("{} {} [{}]", name, name_of(tensor->type), fmt::join(tensor->shape, ", "));
      hash.add(std::as_bytes(std::span(header)));
      add_samples(*file, *tensor, hash);
    }
  }
  return hash.value();
}

std::uint64_t HfDirectory::hash_of(const std::string& stored_name) const {
  StreamingHash hash;
  for (const auto& [file, tensor] : parameters_.at(stored_name).places()) {
    const std::string header =
        fmt::format("{} [{}]", name_of(tensor->type), fmt::join(tensor->shape, ", "));
    hash.add(std::as_bytes(std::span(header)));
    add_all(*file, *tensor, hash);
  }
  return hash.value();
}

const std::string& HfDirectory::file_of(const std::string& stored_name) const {
  return parameters_.at(stored_name).place.file->path();
}

}  // namespace terrace
