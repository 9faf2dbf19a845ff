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
#include "runtime/checkpoint/adapter_config.h"
#include "runtime/checkpoint/durable_file.h"
#include "runtime/checkpoint/stored_values.h"
#include "runtime/model/adapter_targets.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPeftPrefix = "base_model.model.";

std::string name_in_peft(const std::string& weight, std::string_view part) {
  return fmt::format("{}{}.{}.weight", kPeftPrefix, module_of(weight), part);
}

ConfigError other_model(const std::string& directory, const std::string& what,
                        const ModelConfig& config) {
  return {fmt::format("{}: {}", directory, what),
          fmt::format("is it an adapter of {}? Only adapters of the linear layers of blocks are "
                      "built",
                      config.name)};
}

std::string read_adapter_text(const std::string& directory) {
  const std::string path = (fs::path(directory) / kAdapterConfig).string();
  if (!system_files().exists(path)) {
    throw ConfigError(fmt::format("{} is not an adapter: it has no {}", directory, kAdapterConfig),
                      "give an adapter directory as PEFT saves it, or the final directory of a run "
                      "with --lora-rank");
  }
  return read_whole_file(system_files(), path);
}

}  // namespace

bool is_adapter_directory(const std::string& directory) {
  std::error_code ignored;
  return fs::exists(fs::path(directory) / kAdapterConfig, ignored);
}

AdapterDirectory::AdapterDirectory(const std::string& directory) : directory_(directory) {
  const std::string text = read_adapter_text(directory);
  const AdapterConfig config =
      parse_adapter_config(text, (fs::path(directory) / kAdapterConfig).string());
  options_ = config.options;
  base_model_ = config.base_model;
  dropout_ = config.dropout;
  const std::string weights = (fs::path(directory) / kAdapterWeights).string();
  if (!system_files().exists(weights)) {
    throw ConfigError(fmt::format("{} has no {}", directory, kAdapterWeights),
                      "save the adapter as safetensors: PEFT's save_pretrained(..., "
                      "safe_serialization=True)");
  }
  file_ = std::make_unique<SafetensorsFile>(weights);
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
  model.adapter = std::move(options);
  check_tensors(model);
  return model;
}

void AdapterDirectory::check_tensors(const ModelConfig& config) const {
  std::set<std::string> used;
  for (const UnitLayout& unit : parameter_layout(config)) {
    for (const ParameterTensor& tensor : unit.tensors) {
      if (!is_adapter(tensor.kind)) continue;
      const SafetensorsTensor* const stored = locate(tensor.stored_name);
      if (stored == nullptr) {
        throw other_model(directory_, fmt::format("tensor {} is missing", tensor.stored_name),
                          config);
      }
      used.insert(stored->name);
      std::vector<std::uint64_t> wanted = {static_cast<std::uint64_t>(tensor.stored_rows)};
      if (!tensor.is_vector) wanted.push_back(static_cast<std::uint64_t>(tensor.columns));
      if (stored->shape != wanted) {
        throw other_model(directory_,
                          fmt::format("tensor {} is [{}], but should be [{}]", stored->name,
                                      fmt::join(stored->shape, ", "), fmt::join(wanted, ", ")),
                          config);
      }
      if (is_loadable(stored->type)) continue;
      throw ConfigError(
          fmt::format("{}: tensor {} is {}", directory_, stored->name, name_of(stored->type)),
          "convert it to F32, BF16 or F16");
    }
  }
  for (const SafetensorsTensor& tensor : file_->header().tensors) {
    if (used.contains(tensor.name)) continue;
    throw other_model(directory_, fmt::format("tensor {} belongs to no such layer", tensor.name),
                      config);
  }
}

void AdapterDirectory::read(const ParameterTensor& tensor, std::int64_t begin,
                            std::span<float> out) const {
  const SafetensorsTensor* const stored = locate(tensor.stored_name);
  TERRACE_CHECK(stored != nullptr);
  read_values(*file_, *stored, tensor.stored_first_row * tensor.columns + begin, out);
  if (all_finite(out)) return;
  throw CorruptData(
      fmt::format("{}: {} has values that are not finite", file_->path(), stored->name),
      "download the adapter again, or use another one");
}

void AdapterDirectory::read(StateField field, const UnitLayout& unit, std::int64_t begin,
                            std::span<float> out) const {
  std::ranges::fill(out, 0.0F);
  if (field != StateField::kMaster) return;
  for_each_tensor_part(
      unit, begin, out,
      [this](const ParameterTensor& tensor, std::int64_t first, std::span<float> part) {
        if (is_adapter(tensor.kind)) read(tensor, first, part);
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

std::vector<UnitLayout> adapter_layout(const std::vector<UnitLayout>& layout) {
  std::vector<UnitLayout> result = layout;
  for (UnitLayout& unit : result) {
    std::erase_if(unit.tensors, [](const ParameterTensor& one) { return !is_adapter(one.kind); });
  }
  return result;
}

void write_adapter_directory(const AdapterExport& options, const ModelConfig& config,
                             const std::vector<UnitLayout>& layout, FetchParameter fetch) {
  const fs::path directory = options.directory;
  make_directories(options.directory);
  remove_file((directory / kAdapterConfig).string());  // no adapter until all is written
  write_companions(options.directory, options.companions);
  write_hf_tensors((directory / kAdapterWeights).string(), options.types, adapter_layout(layout),
                   fetch);
  const AdapterConfig text = {.options = config.adapter,
                              .base_model = options.base_model,
                              .dropout = 0,
                              .is_fan_in_fan_out = config.stores_transposed};
  write_durable_file((directory / kAdapterConfig).string(), to_json(text));
  sync_directory(fs::absolute(directory).parent_path().string());  // for its name
}

}  // namespace terrace
