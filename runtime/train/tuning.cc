#include "runtime/train/tuning.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "runtime/model/adapter_targets.h"
#include "runtime/model/trainable.h"
#include "runtime/train/option_flags.h"
#include "runtime/train/train_setup.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAgreeRemedy = "leave the flag out, or start a new adapter without --adapter";

void refuse_adapter_as_model(const std::string& model) {
  std::error_code ignored;
  if (!is_adapter_directory(model) || fs::exists(fs::path(model) / "config.json", ignored)) return;
  throw ConfigError(fmt::format("--model {} is an adapter, not a model", model),
                    fmt::format("give the adapter's base model, and --adapter {}", model));
}

template <typename Value>
void check_agrees(const char* flag, const std::optional<Value>& asked, const Value& is,
                  const std::string& directory) {
  if (!asked || *asked == is) return;
  throw ConfigError(
      fmt::format("--{} {} contradicts --adapter {}, which has {}", flag, *asked, directory, is),
      kAgreeRemedy);
}

void take_given_adapter(TunedModel& tuned, const LoraOptions& lora) {
  const ModelConfig base = tuned.config;
  tuned.adapter = std::make_unique<AdapterDirectory>(lora.adapter);
  if (tuned.adapter->dropout() > 0) {
    throw ConfigError(fmt::format("--adapter {}: lora_dropout {} is not built yet", lora.adapter,
                                  tuned.adapter->dropout()),
                      "set it to 0 in its adapter_config.json to continue without dropout");
  }
  tuned.config = tuned.adapter->adapted(base);
  std::string doubt = doubt_about_base(*tuned.adapter, tuned.base_model);
  if (!doubt.empty()) tuned.doubts.push_back(std::move(doubt));
  const AdapterOptions& is = tuned.config.adapter;
  check_agrees("lora-rank", lora.rank, is.rank, lora.adapter);
  check_agrees("lora-alpha", lora.alpha, is.alpha, lora.adapter);
  const auto on_off = [](bool is_on) { return std::string_view(is_on ? "on" : "off"); };
  std::optional<std::string_view> asked_form;
  if (lora.is_rank_stabilized) asked_form = on_off(*lora.is_rank_stabilized);
  check_agrees("lora-rslora", asked_form, on_off(is.is_rank_stabilized), lora.adapter);
  const auto type = [](bool is_dora) { return std::string_view(is_dora ? "dora" : "lora"); };
  std::optional<std::string_view> asked_type;
  if (lora.has_magnitudes) asked_type = type(*lora.has_magnitudes);
  check_agrees("lora-type", asked_type, type(is.has_magnitudes), lora.adapter);
  if (lora.targets.empty()) return;
  const std::vector<std::string> asked = with_adapter(base, is, lora.targets).adapter.targets;
  if (asked == is.targets) return;
  throw ConfigError(
      fmt::format("--lora-targets {} contradicts --adapter {}, which has {}",
                  fmt::join(lora.targets, " "), lora.adapter, fmt::join(is.targets, " ")),
      kAgreeRemedy);
}

// Returns the base model as an adapter's files name it: its directory, or its name.
std::string base_model_of(const ModelOptions& options) {
  std::error_code ignored;
  if (!fs::is_directory(options.model, ignored)) return options.model;
  return fs::absolute(options.model).lexically_normal().string();
}

}  // namespace

TunedModel tuned_model(const ModelOptions& options) {
  refuse_adapter_as_model(options.model);
  TunedModel tuned;
  tuned.base_model = base_model_of(options);
  tuned.seed = options.seed;
  tuned.config = load_model_config(options.model, options.ignored_config_keys);
  const LoraOptions& lora = options.lora;
  if (!lora.adapter.empty()) {
    take_given_adapter(tuned, lora);
  } else if (lora.rank) {
    AdapterOptions adapter;
    adapter.rank = *lora.rank;
    adapter.alpha = lora.alpha.value_or(2.0 * static_cast<double>(*lora.rank));
    adapter.is_rank_stabilized = lora.is_rank_stabilized.value_or(false);
    adapter.has_magnitudes = lora.has_magnitudes.value_or(false);
    tuned.config = with_adapter(std::move(tuned.config), std::move(adapter), lora.targets);
  } else {
    tuned.config = with_trainable(std::move(tuned.config), options.trainable, flag_of_option);
  }
  return tuned;
}

WeightTypes TunedModel::types_of(const TrainOptions& options,
                                 const std::optional<WeightTypes>& loaded,
                                 DType compute_type) const {
  const std::optional<WeightTypes> kept =
      config.adapter.is_there() ? WeightTypes{.usual = DType::kF32} : loaded;
  return result_types_for(options, kept, compute_type);
}

void StartState::read(StateField field, const UnitLayout& unit, std::int64_t begin,
                      std::span<float> out) const {
  for_each_tensor_part(
      unit, begin, out,
      [&](const ParameterTensor& tensor, std::int64_t first, std::span<float> part) {
        const std::int64_t at = tensor.offset + first;
        if (!is_adapter(tensor.kind)) return base_.read(field, unit, at, part);
        if (adapter_ != nullptr) return adapter_->read(field, unit, at, part);
        if (is_magnitude(tensor.kind) && field == StateField::kMaster) {
          return read_norms(unit, *unit.find(weight_of_magnitude(tensor.kind)), first, part);
        }
        random_.read(field, unit, at, part);
      });
}

// Reads the norms that an adapter starts with. B is zero at the start, so they are the norms of the
// matrix's own rows.
void StartState::read_norms(const UnitLayout& unit, const ParameterTensor& weight,
                            std::int64_t first_row, std::span<float> norms) const {
  std::vector<float> row(static_cast<std::size_t>(weight.columns));
  for (float& norm : norms) {
    base_.read(StateField::kMaster, unit, weight.offset + first_row * weight.columns, row);
    double squares = 0;
    for (const float value : row) squares += static_cast<double>(value) * value;
    norm = static_cast<float>(std::sqrt(squares));
    ++first_row;
  }
}

}  // namespace terrace
