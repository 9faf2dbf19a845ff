#include "runtime/train/sampled_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/hub_cache.h"
#include "runtime/chat/model_template.h"
#include "runtime/model/model_directory.h"
#include "runtime/tokenizer/choose_tokenizer.h"
#include "runtime/tokenizer/load_tokenizer.h"
#include "runtime/train/run_record.h"
#include "runtime/train/text_continuation.h"

namespace terrace {
namespace {

bool has_model_config(const std::string& directory) {
  return std::filesystem::exists(std::filesystem::path(directory) / "config.json");
}

}  // namespace

SampledModel::SampledModel(const Source& source, Log& log)
    : directory_(directory_of_model(source.directory)), named_by_(source.named_by) {
  if (!std::filesystem::is_directory(directory_)) refuse_absent();
  if (!source.adapter.empty()) check_base(source);
  if (is_checkpoint(directory_)) {
    checkpoint_ = std::make_unique<Checkpoint>(directory_);
    config_ = checkpoint_->model();
    compute_type_ = DType::kF32;
    checkpoint_->open(parameter_layout(config_));
  } else {
    open_model(source, log);
  }
  load_tokenizer_of(source.tokenizer, log);
}

void SampledModel::open_model(const Source& source, Log& log) {
  if (!source.adapter.empty()) {
    adapter_ = std::make_unique<AdapterDirectory>(directory_of_model(source.adapter));
    const std::string doubt = doubt_about_base(*adapter_, directory_);
    if (!doubt.empty()) log.warning(doubt);
  } else if (!has_model_config(directory_)) {
    take_adapter();
  }
  config_ = load_model_config(directory_, source.ignored_config_keys);
  if (adapter_ != nullptr) config_ = adapter_->adapted(config_);
  weights_ = std::make_unique<HfDirectory>(directory_, config_, parameter_layout(config_), log);
  WeightTypes types = weights_->types();
  // A vector of several addends is fp32 in files, and exact in every compute type.
  for (const UnitLayout& unit : parameter_layout(config_)) {
    for (const ParameterTensor& tensor : unit.tensors) {
      if (tensor.addends > 1) types.others.erase(tensor.name);
    }
  }
  const bool is_bf16 = types == WeightTypes{.usual = DType::kBF16};
  compute_type_ = is_bf16 ? DType::kBF16 : DType::kF32;
}

// Throws ConfigError where an adapter is named over a directory that has no weights for it.
void SampledModel::check_base(const Source& source) const {
  if (!is_adapter_directory(directory_of_model(source.adapter))) {
    throw ConfigError(fmt::format("--adapter {}: not an adapter", source.adapter),
                      "name a directory with adapter_config.json and adapter_model.safetensors");
  }
  if (!is_checkpoint(directory_) && has_model_config(directory_)) return;
  throw ConfigError(fmt::format("--adapter {}: {} is not the directory of a base model",
                                source.adapter, directory_),
                    "name the Hugging Face directory that the adapter was trained on");
}

void SampledModel::read(const UnitLayout& unit, const ParameterTensor& tensor, std::int64_t begin,
                        std::span<float> out) const {
  if (checkpoint_ != nullptr) {
    checkpoint_->read(StateField::kMaster, unit, tensor.offset + begin, out);
  } else if (adapter_ != nullptr && adapter_->has(tensor)) {
    adapter_->read(tensor, begin, out);
  } else {
    weights_->read(tensor, begin, out);
  }
}

// Takes the directory as an adapter; the model is then its base.
void SampledModel::take_adapter() {
  if (!is_adapter_directory(directory_)) refuse("not a model, an adapter or a checkpoint");
  adapter_ = std::make_unique<AdapterDirectory>(directory_);
  const std::string base = adapter_->base_model();
  directory_ = directory_of_model(base);
  if (has_model_config(directory_)) return;
  const std::string cached = find_in_hub_cache(base);
  throw ConfigError(
      fmt::format("{}{}: the base of this adapter is '{}', which is not a model directory here",
                  named_by_, adapter_->directory(), base),
      fmt::format("give the directory of the base{}, and --adapter {}",
                  cached.empty() ? "" : fmt::format(" (the hub's cache has it in {})", cached),
                  adapter_->directory()));
}

// A checkpoint has no tokenizer of its own: the options of its run name one.
SampledModel::TokenizerChoice SampledModel::tokenizer_choice(const std::string& asked, Log& log) {
  if (checkpoint_ == nullptr) {
    const bool has_own = adapter_ != nullptr && !find_tokenizer_file(adapter_->directory()).empty();
    return {asked, has_own ? adapter_->directory() : directory_};
  }
  const std::optional<TrainOptions> run = options_of_run(directory_, log);
  if (run) template_of_run_ = run->data.chat_template;
  if (asked != "auto") return {asked, run ? run->model.model : directory_, false};
  if (!run) return {asked, directory_};
  const bool is_bytes = trained_on_bytes(*run, config_.vocabulary);
  return {tokenizer_of_ids(*run, is_bytes), run->model.model, !is_bytes};
}

void SampledModel::load_tokenizer_of(const std::string& asked, Log& log) {
  const TokenizerChoice choice = tokenizer_choice(asked, log);
  tokenizer_ = choose_tokenizer(choice.name, choice.directory, log);
  if (tokenizer_->vocabulary() > config_.vocabulary) {
    refuse(fmt::format("the tokenizer has {} ids, but the model's vocabulary has only {}",
                       tokenizer_->vocabulary(), config_.vocabulary));
  }
  tokenizer_directory_ = choice.directory;
  end_ids_ = end_ids_of(*tokenizer_, {choice.directory, directory_});
  const bool is_bytes = tokenizer_path(choice.name, choice.directory).empty();
  if (!is_bytes || !choice.doubts_bytes) return;
  const std::string foreign = why_bytes_are_foreign(choice.directory, config_);
  if (!foreign.empty()) log.warning(foreign);
}

// An adapter whose run named a template has it in a file of its own.
std::optional<ChatTemplateChoice> SampledModel::chat_template(const std::string& asked) const {
  const std::string& named = asked.empty() ? template_of_run_ : asked;
  if (!named.empty()) return ChatTemplateChoice{tokenizer_directory_, named};
  if (adapter_ != nullptr) {
    const auto own = std::filesystem::path(adapter_->directory()) / "chat_template.jinja";
    if (std::filesystem::is_regular_file(own)) {
      return ChatTemplateChoice{tokenizer_directory_, own.string()};
    }
  }
  for (const std::string& directory : {tokenizer_directory_, directory_}) {
    if (has_chat_template(directory)) return ChatTemplateChoice{directory, ""};
  }
  return std::nullopt;
}

void SampledModel::refuse_absent() const {
  if (directory_.find('/') == std::string::npos) refuse("not a directory");
  throw absent_model_error(directory_);
}

void SampledModel::refuse(const std::string& why) const {
  throw ConfigError(fmt::format("{}{}: {}", named_by_, directory_, why),
                    "name the final/ or checkpoint-N of a run, and with --tokenizer the tokenizer "
                    "that it was trained with");
}

}  // namespace terrace
