#include "runtime/checkpoint/adapter_directory.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/half_arrays.h"
#include "base/lfs_pointer.h"
#include "runtime/checkpoint/adapter_config.h"
#include "runtime/checkpoint/durable_file.h"
#include "runtime/checkpoint/hf_index.h"
#include "runtime/checkpoint/stored_values.h"
#include "runtime/model/adapter_modules.h"
#include "runtime/model/adapter_patterns.h"
#include "runtime/model/adapter_targets.h"
#include "runtime/model/model_directory.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPeftPrefix = "base_model.model.";

std::string name_in_peft(const std::string& weight, std::string_view part) {
  return fmt::format("{}{}.{}.weight", kPeftPrefix, module_of(weight), part);
}

// Returns the name that a tensor of the model has in an adapter's file.
std::string whole_name_in_peft(const std::string& stored_name) {
  return fmt::format("{}{}", kPeftPrefix, stored_name);
}

// Returns the name that a parameter has in an adapter's file.
std::string name_in_file(const ParameterTensor& tensor) {
  return is_adapter(tensor.kind) ? tensor.stored_name : whole_name_in_peft(tensor.stored_name);
}

ConfigError other_model(const std::string& directory, const std::string& what,
                        const ModelConfig& config) {
  return {fmt::format("{}: {}", directory, what),
          fmt::format("is it an adapter of {}? Only adapters of the linear layers of blocks are "
                      "built, and modules that modules_to_save names",
                      config.name)};
}

std::string read_adapter_text(const std::string& directory) {
  const std::string path = (fs::path(directory) / kAdapterConfig).string();
  if (!system_files().exists(path)) {
    throw ConfigError(fmt::format("{} is not an adapter: it has no {}", directory, kAdapterConfig),
                      "give an adapter directory as PEFT saves it, or the final directory of a run "
                      "with --lora-rank");
  }
  std::string text = read_whole_file(system_files(), path);
  refuse_lfs_pointer(text, path);
  return text;
}

}  // namespace

bool is_adapter_directory(const std::string& directory) {
  std::error_code ignored;
  return fs::exists(fs::path(directory) / kAdapterConfig, ignored);
}

AdapterDirectory::AdapterDirectory(const std::string& directory)
    : directory_(directory_of_model(directory)) {
  const std::string text = read_adapter_text(directory_);
  const AdapterConfig config = parse_adapter_config(text, config_path());
  options_ = config.options;
  base_model_ = config.base_model;
  const std::string weights = (fs::path(directory_) / kAdapterWeights).string();
  if (!system_files().exists(weights)) {
    throw ConfigError(fmt::format("{} has no {}", directory_, kAdapterWeights),
                      "save the adapter as safetensors: PEFT's save_pretrained(..., "
                      "safe_serialization=True)");
  }
  file_ = std::make_unique<SafetensorsFile>(weights);
}

std::string AdapterDirectory::config_path() const {
  return (fs::path(directory_) / kAdapterConfig).string();
}

// Finds a tensor by its stored name. In the adapter of a model without its head, as transformers'
// AutoModel makes it, the names lack a prefix.
const SafetensorsTensor* AdapterDirectory::locate(const std::string& stored_name) const {
  const SafetensorsTensor* found = file_->find(stored_name);
  const std::string_view rest = std::string_view(stored_name).substr(kPeftPrefix.size());
  for (const std::string_view prefix : {"transformer.", "model."}) {
    if (found != nullptr || !rest.starts_with(prefix)) continue;
    found = file_->find(fmt::format("{}{}", kPeftPrefix, rest.substr(prefix.size())));
  }
  return found;
}

ModelConfig AdapterDirectory::adapted(const ModelConfig& config) const {
  ModelConfig model = config;
  model.adapter = {};
  std::set<std::string> weights;
  for (const std::string& weight : adaptable_weights(model)) {
    if (locate(name_in_peft(weight, "lora_A")) != nullptr) weights.insert(weight);
  }
  if (weights.empty())
    throw other_model(directory_, "no tensor belongs to a layer of the model", model);
  AdapterOptions options = options_;
  options.targets = targets_of(model, weights);
  model.adapter = options;
  options.whole_modules = modules_of(model, whole_tensors(model));
  model.adapter = std::move(options);
  model = with_adapter_sizes(std::move(model), config_path());
  check_shorter_names(model, weights);
  check_whole_modules(model);
  check_tensors(model);
  return model;
}

// Refuses patterns that do not match the same layers of a model with and without its head. The
// names of the modules in the file are those that PEFT matched.
void AdapterDirectory::check_shorter_names(const ModelConfig& config,
                                           const std::set<std::string>& weights) const {
  const AdapterPatterns patterns(options_, config_path());
  for (const std::string& weight : weights) {
    std::string_view name = locate(name_in_peft(weight, "lora_A"))->name;
    name.remove_prefix(kPeftPrefix.size());
    name.remove_suffix(std::string_view(".lora_A.weight").size());
    const AdapterSize usual = {options_.rank, options_.alpha};
    if (patterns.size_of(name).value_or(usual) == config.adapter.size_of(weight)) continue;
    throw ConfigError(
        fmt::format("{}: a pattern of rank_pattern or alpha_pattern matches {} or {}, but not "
                    "both, and both are names of one layer",
                    config_path(), name, module_of(weight)),
        "shorten the pattern to an end that both names have");
  }
}

// Refuses a layer that has an adapter and trains whole.
void AdapterDirectory::check_whole_modules(const ModelConfig& config) const {
  for (const std::string& weight : adaptable_weights(config)) {
    if (!config.adapter.has_target(weight) || !config.adapter.trains_whole(weight)) continue;
    throw ConfigError(
        fmt::format("{}: {} has an adapter and is one of modules_to_save", directory_,
                    module_of(weight)),
        "take it out of modules_to_save in its adapter_config.json, or its matrices out of its "
        "file");
  }
}

void AdapterDirectory::check_tensors(const ModelConfig& config) const {
  std::set<std::string> used;
  for (const UnitLayout& unit : parameter_layout(config)) {
    for (const ParameterTensor& tensor : unit.tensors) {
      if (!has(tensor)) continue;
      const SafetensorsTensor* const stored = locate(name_in_file(tensor));
      check_tensor(config, tensor, stored);
      used.insert(stored->name);
    }
  }
  if (config.tied) check_tied_head(config);
  if (has_whole_tied_head(config)) {
    used.insert(locate(whole_name_in_peft(stored_head_name(config)))->name);
  }
  for (const SafetensorsTensor& tensor : file_->header().tensors) {
    if (used.contains(tensor.name)) continue;
    throw other_model(directory_, fmt::format("tensor {} belongs to no such layer", tensor.name),
                      config);
  }
}

void AdapterDirectory::check_tensor(const ModelConfig& config, const ParameterTensor& tensor,
                                    const SafetensorsTensor* stored) const {
  if (stored == nullptr) {
    throw other_model(directory_, fmt::format("tensor {} is missing", name_in_file(tensor)),
                      config);
  }
  const std::vector<std::uint64_t> wanted = stored_shape(tensor);
  if (stored->shape != wanted) {
    throw other_model(directory_,
                      fmt::format("tensor {} is [{}], but should be [{}]", stored->name,
                                  fmt::join(stored->shape, ", "), fmt::join(wanted, ", ")),
                      config);
  }
  if (is_loadable(stored->type)) return;
  throw ConfigError(
      fmt::format("{}: tensor {} is {}", directory_, stored->name, name_of(stored->type)),
      "convert it to F32, BF16 or F16");
}

// Refuses an adapter that unties a model's head: one that has the head or the embedding alone, or
// other values for one than for the other.
void AdapterDirectory::check_tied_head(const ModelConfig& config) const {
  const std::string head_name = whole_name_in_peft(stored_head_name(config));
  const SafetensorsTensor* const head = locate(head_name);
  const std::string embedding_name = whole_name_in_peft(stored_embedding_name(config));
  const SafetensorsTensor* const embedding = locate(embedding_name);
  if (head == nullptr && embedding == nullptr) return;
  const bool are_both = head != nullptr && embedding != nullptr;
  if (are_both && same_bytes(*file_, *head, *file_, *embedding)) return;
  throw ConfigError(
      fmt::format("{}: {} ties its head to its embedding, but {} {} {}", directory_, config.name,
                  head == nullptr ? embedding_name : head_name,
                  are_both ? "differs from" : "is there without",
                  head == nullptr ? head_name : embedding_name),
      "train it with both in modules_to_save and ensure_weight_tying, or untie the model: store "
      "the head in its files, and write \"tie_word_embeddings\": false to its config.json");
}

bool AdapterDirectory::has(const ParameterTensor& tensor) const {
  return is_adapter(tensor.kind) || options_.trains_whole(tensor.stored_name);
}

void AdapterDirectory::read(const ParameterTensor& tensor, std::int64_t begin,
                            std::span<float> out) const {
  const SafetensorsTensor* const stored = locate(name_in_file(tensor));
  TERRACE_CHECK(stored != nullptr);
  if (tensor.stored_transposed) {
    bands_->read(*file_, *stored, tensor, begin, out);
  } else {
    read_values(*file_, *stored, tensor.stored_first_row * tensor.columns + begin, out);
  }
  check_finite(*stored, out);
}

void AdapterDirectory::read_stored(const std::string& stored_name, std::int64_t begin,
                                   std::span<float> out) const {
  const SafetensorsTensor* const stored = locate(whole_name_in_peft(stored_name));
  TERRACE_CHECK(stored != nullptr);
  read_values(*file_, *stored, begin, out);
  check_finite(*stored, out);
}

void AdapterDirectory::check_finite(const SafetensorsTensor& stored,
                                    std::span<const float> values) const {
  if (all_finite(values)) return;
  throw CorruptData(
      fmt::format("{}: {} has values that are not finite", file_->path(), stored.name),
      "download the adapter again, or use another one");
}

void AdapterDirectory::read(StateField field, const UnitLayout& unit, std::int64_t begin,
                            std::span<float> out) const {
  std::ranges::fill(out, 0.0F);
  if (field != StateField::kMaster) return;
  for_each_tensor_part(
      unit, begin, out,
      [this](const ParameterTensor& tensor, std::int64_t first, std::span<float> part) {
        if (has(tensor)) read(tensor, first, part);
      });
}

std::string doubt_about_base(const AdapterDirectory& adapter, const std::string& base) {
  namespace fs = std::filesystem;
  std::error_code failed;
  if (!fs::is_directory(adapter.base_model(), failed)) return "";
  if (fs::equivalent(adapter.base_model(), base, failed) || failed) return "";
  return fmt::format(
      "{} was trained on {}, not on {}: it has the same effect only if both have the same weights",
      adapter.directory(), adapter.base_model(), base);
}

std::vector<UnitLayout> adapter_layout(const ModelConfig& config,
                                       const std::vector<UnitLayout>& layout) {
  std::vector<UnitLayout> result = layout;
  for (UnitLayout& unit : result) {
    std::erase_if(unit.tensors, [](const ParameterTensor& one) { return !one.trainable; });
    for (ParameterTensor& tensor : unit.tensors) tensor.stored_name = name_in_file(tensor);
    const ParameterTensor* const embedding = unit.find(ParameterKind::kTokenEmbedding);
    if (embedding == nullptr || !has_whole_tied_head(config)) continue;
    ParameterTensor head = *embedding;
    head.stored_name = whole_name_in_peft(stored_head_name(config));
    unit.tensors.push_back(std::move(head));
  }
  return result;
}

void write_adapter_directory(const AdapterExport& options, const ModelConfig& config,
                             const std::vector<UnitLayout>& layout, FetchParameter fetch) {
  const fs::path directory = options.directory;
  make_directories(options.directory);
  remove_file((directory / kAdapterConfig).string());  // no adapter until all is written
  write_companions(options.directory, options.companions);
  write_hf_tensors((directory / kAdapterWeights).string(), options.types,
                   adapter_layout(config, layout), fetch);
  const AdapterConfig text = {.options = config.adapter,
                              .base_model = options.base_model,
                              .is_fan_in_fan_out = config.stores_transposed,
                              .ties_head = has_whole_tied_head(config)};
  write_durable_file((directory / kAdapterConfig).string(), to_json(text));
  sync_directory(fs::absolute(directory).parent_path().string());  // for its name
}

}  // namespace terrace
