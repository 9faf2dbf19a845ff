#include "runtime/train/sampled_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "runtime/tokenizer/choose_tokenizer.h"
#include "runtime/tokenizer/load_tokenizer.h"
#include "runtime/tokenizer/special_names.h"
#include "runtime/train/run_record.h"

namespace terrace {
namespace {

bool has_model_config(const std::string& directory) {
  return std::filesystem::exists(std::filesystem::path(directory) / "config.json");
}

}  // namespace

SampledModel::SampledModel(const Source& source, Log& log) : directory_(source.directory) {
  if (!std::filesystem::is_directory(directory_)) refuse_absent();
  if (is_checkpoint(directory_)) {
    checkpoint_ = std::make_unique<Checkpoint>(directory_);
    config_ = checkpoint_->model();
    compute_type_ = DType::kF32;
    checkpoint_->open(parameter_layout(config_));
  } else {
    if (!has_model_config(directory_)) take_adapter();
    config_ = load_model_config(directory_, source.ignored_config_keys);
    if (adapter_ != nullptr) config_ = adapter_->adapted(config_);
    weights_ = std::make_unique<HfDirectory>(directory_, config_, parameter_layout(config_), log);
    const bool is_bf16 = weights_->types() == WeightTypes{.usual = DType::kBF16};
    compute_type_ = is_bf16 ? DType::kBF16 : DType::kF32;
  }
  load_tokenizer_of(source.tokenizer, log);
}

void SampledModel::read(const UnitLayout& unit, const ParameterTensor& tensor, std::int64_t begin,
                        std::span<float> out) const {
  if (checkpoint_ != nullptr) {
    checkpoint_->read(StateField::kMaster, unit, tensor.offset + begin, out);
  } else if (is_adapter(tensor.kind)) {
    adapter_->read(tensor, begin, out);
  } else {
    weights_->read(tensor, begin, out);
  }
}

// Takes the directory as an adapter; the model is then its base.
void SampledModel::take_adapter() {
  if (!is_adapter_directory(directory_)) refuse("not a model, an adapter or a checkpoint");
  adapter_ = std::make_unique<AdapterDirectory>(directory_);
  if (!has_model_config(adapter_->base_model())) {
    throw ConfigError(fmt::format("--model {}: the base of this adapter is '{}', which is not a "
                                  "model directory here",
                                  directory_, adapter_->base_model()),
                      "merge it first with terrace merge BASE ADAPTER DIR, where BASE is the "
                      "directory of the base");
  }
  directory_ = adapter_->base_model();
}

// A checkpoint has no tokenizer of its own: the options of its run name one.
SampledModel::TokenizerChoice SampledModel::tokenizer_choice(const std::string& asked,
                                                             Log& log) const {
  if (checkpoint_ == nullptr) {
    const bool has_own = adapter_ != nullptr && !find_tokenizer_file(adapter_->directory()).empty();
    return {asked, has_own ? adapter_->directory() : directory_};
  }
  if (asked != "auto") return {asked, directory_, false};
  const std::optional<TrainOptions> run = options_of_run(directory_, log);
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
  take_end_ids(choice.directory);
  const bool is_bytes = tokenizer_path(choice.name, choice.directory).empty();
  if (!is_bytes || !choice.doubts_bytes) return;
  const std::string foreign = why_bytes_are_foreign(choice.directory, config_);
  if (!foreign.empty()) log.warning(foreign);
}

// A model may have been trained with another tokenizer than its files are for. So the ids that they
// name count only if the tokenizer's own end token is one of them.
void SampledModel::take_end_ids(const std::string& directory_of_tokenizer) {
  const std::optional<std::int32_t> own = tokenizer_->end_token();
  if (!own.has_value()) return;
  end_ids_ = {*own};
  for (const std::string& directory : {directory_of_tokenizer, directory_}) {
    const std::vector<std::int32_t> named = read_end_ids(directory);
    if (std::ranges::find(named, *own) == named.end()) continue;
    end_ids_.insert(end_ids_.end(), named.begin(), named.end());
  }
}

void SampledModel::refuse_absent() const {
  if (!is_hub_name(directory_)) refuse("not a directory");
  throw ConfigError(fmt::format("--model {}: there is no such directory, and nothing is "
                                "downloaded",
                                directory_),
                    download_remedy(directory_));
}

void SampledModel::refuse(const std::string& why) const {
  throw ConfigError(fmt::format("--model {}: {}", directory_, why),
                    "name the final/ or checkpoint-N of a run, and with --tokenizer the tokenizer "
                    "that it was trained with");
}

}  // namespace terrace
