#include "runtime/train/tuning.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "runtime/model/adapter_modules.h"
#include "runtime/model/adapter_targets.h"
#include "runtime/model/parameter_layout.h"
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
  const std::string base = AdapterDirectory(model).base_model();
  const bool is_here = fs::exists(fs::path(base) / "config.json", ignored);
  throw ConfigError(
      fmt::format("--model {} is an adapter, not a model", model),
      is_here ? fmt::format("give its base: --model {} --adapter {}", base, model)
              : fmt::format("give the directory where its base, '{}', is now: --model DIR "
                            "--adapter {}",
                            base, model));
}

template <typename Value>
void check_agrees(const char* flag, const std::optional<Value>& asked, const Value& is,
                  const std::string& directory) {
  if (!asked || *asked == is) return;
  throw ConfigError(
      fmt::format("--{} {} contradicts --adapter {}, which has {}", flag, *asked, directory, is),
      kAgreeRemedy);
}

// Refuses flags that name other layers or modules than a given adapter has.
void check_layers_agree(const ModelConfig& base, const AdapterOptions& is,
                        const ModelOptions& options) {
  const LoraOptions& lora = options.lora;
  const auto refuse = [&](const char* flag, const std::vector<std::string>& asked,
                          const std::vector<std::string>& there) {
    throw ConfigError(
        fmt::format("--{} {} contradicts --adapter {}, which has {}", flag, fmt::join(asked, " "),
                    lora.adapter,
                    there.empty() ? "none" : fmt::format("{}", fmt::join(there, " "))),
        kAgreeRemedy);
  };
  if (!lora.targets.empty()) {
    const std::vector<std::string> asked = with_adapter(base, is, lora.targets).adapter.targets;
    if (asked != is.targets) refuse("lora-targets", lora.targets, is.targets);
  }
  if (options.trainable.empty()) return;
  if (modules_that_match(base, options.trainable, flag_of_option) == is.whole_modules) return;
  refuse("trainable", options.trainable, is.whole_modules);
}

void take_given_adapter(TunedModel& tuned, const ModelOptions& options) {
  const LoraOptions& lora = options.lora;
  const ModelConfig base = tuned.config;
  tuned.adapter = std::make_unique<AdapterDirectory>(lora.adapter);
  tuned.config = tuned.adapter->adapted(base);
  if (lora.dropout) tuned.config.adapter.dropout = *lora.dropout;
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
  check_layers_agree(base, is, options);
}

// Returns the words for messages about the dropout and the magnitudes of an adapter.
DropoutWords words_of_dropout(const LoraOptions& lora, const AdapterOptions& adapter) {
  const std::string given = fmt::format("--adapter {}", lora.adapter);
  DropoutWords words;
  words.remedy = "give --lora-dropout 0";
  if (lora.dropout) {
    words.dropout = fmt::format("--lora-dropout {}", *lora.dropout);
    words.magnitudes = lora.adapter.empty() ? "--lora-type dora" : "the use_dora of " + given;
  } else {
    words.dropout = fmt::format("{}: lora_dropout {}", given, adapter.dropout);
    words.magnitudes = "use_dora";
  }
  return words;
}

// Returns the base model as an adapter's files name it: its directory, or its name.
std::string base_model_of(const ModelOptions& options) {
  std::error_code ignored;
  if (!fs::is_directory(options.model, ignored)) return options.model;
  return fs::absolute(options.model).lexically_normal().string();
}

// Returns a sentence if PEFT reads the adapter's files as another adapter, else an empty string.
std::string doubt_about_peft(const ModelConfig& config) {
  if (config.experts.count == 0 || !config.adapter.is_there()) return "";
  for (const UnitLayout& unit : parameter_layout(config)) {
    const bool has_one = unit.find(ParameterKind::kGateB) != nullptr ||
                         unit.find(ParameterKind::kUpB) != nullptr ||
                         unit.find(ParameterKind::kDownB) != nullptr;
    if (!has_one) continue;
    return "the adapter has feed-forward layers of a model with experts: terrace reads and merges "
           "it, but PEFT takes such layers for matrices of experts and does not load it";
  }
  return "";
}

// Sets the coefficients of the losses of routers. Throws ConfigError for a model without experts.
void set_router_losses(ModelConfig& config, const ModelOptions& options) {
  const auto set = [&config](Option option, const std::optional<double>& asked, double& target) {
    if (!asked) return;
    if (config.expert_layers() == 0) {
      throw ConfigError(fmt::format("{} {}: {} has no layers of experts", flag_of_option(option),
                                    *asked, config.name),
                        "leave it out");
    }
    target = *asked;
  };
  ExpertOptions& experts = config.experts;
  set(Option::kBalanceCoefficient, options.router_aux_loss_coef, experts.balance_coefficient);
  set(Option::kZCoefficient, options.router_z_loss_coef, experts.z_coefficient);
}

}  // namespace

TunedModel tuned_model(const ModelOptions& options) {
  refuse_adapter_as_model(options.model);
  TunedModel tuned;
  tuned.base_model = base_model_of(options);
  tuned.seed = options.seed;
  tuned.config = load_model_config(options.model, options.ignored_config_keys);
  set_router_losses(tuned.config, options);
  const LoraOptions& lora = options.lora;
  if (!lora.adapter.empty()) {
    take_given_adapter(tuned, options);
  } else if (lora.rank) {
    AdapterOptions adapter;
    adapter.rank = *lora.rank;
    adapter.alpha = lora.alpha.value_or(2.0 * static_cast<double>(*lora.rank));
    adapter.is_rank_stabilized = lora.is_rank_stabilized.value_or(false);
    adapter.has_magnitudes = lora.has_magnitudes.value_or(false);
    adapter.dropout = lora.dropout.value_or(0);
    adapter.whole_modules = modules_that_match(tuned.config, options.trainable, flag_of_option);
    tuned.config = with_adapter(std::move(tuned.config), std::move(adapter), lora.targets);
  } else {
    tuned.config = with_trainable(std::move(tuned.config), options.trainable, flag_of_option);
  }
  const AdapterOptions& adapter = tuned.config.adapter;
  check_dropout(adapter, words_of_dropout(lora, adapter));
  std::string doubt = doubt_about_peft(tuned.config);
  if (!doubt.empty()) tuned.doubts.push_back(std::move(doubt));
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
        if (adapter_ != nullptr && adapter_->has(tensor)) {
          return adapter_->read(field, unit, at, part);
        }
        if (!is_adapter(tensor.kind)) return base_.read(field, unit, at, part);
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
