#include "runtime/train/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "base/philox.h"
#include "kernels/cpu/cpu_kernels.h"
#include "memory/host/host_limits.h"
#include "runtime/checkpoint/adapter_directory.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/hf_directory.h"
#include "runtime/model/rope_table.h"
#include "runtime/tokenizer/choose_tokenizer.h"
#include "runtime/tokenizer/load_tokenizer.h"
#include "runtime/train/run_record.h"

namespace terrace {
namespace {

// Windows are whole multiples of this where the model has the positions.
constexpr std::int64_t kWindowGrain = 64;
// Of a parameter that is fetched at once; a tensor stored transposed is read whole anyway.
constexpr std::int64_t kFetchElements = 16 * 1024 * 1024;
// "samp": keeps these numbers apart from those of parameters and of the order of samples.
constexpr std::uint32_t kRandomStream = 0x73616d70U;

// Weights that are all bf16 compute in bf16, others, which bf16 does not hold exactly, in fp32.
DType compute_type_of(const WeightTypes& types) {
  return types == WeightTypes{.usual = DType::kBF16} ? DType::kBF16 : DType::kF32;
}

ComputeModel model_of(const UnitCompute& compute, int threads) { return compute.model(1, threads); }

// The largest window that the text needs and memory holds.
TokenSampler::Shape fitting_shape(TokenSampler::Shape shape, std::int64_t text_tokens) {
  const std::size_t usable = read_host_limits().usable_bytes();
  const auto whole = static_cast<std::int64_t>(
      round_up(static_cast<std::size_t>(text_tokens), static_cast<std::size_t>(kWindowGrain)));
  // Dynamic rotary embeddings are made to go on.
  const bool goes_on = std::ranges::any_of(
      shape.config.ropes, [](const RopeOptions& rope) { return rope.type == RopeType::kDynamic; });
  shape.window = goes_on ? whole : std::min(shape.config.positions, whole);
  while (TokenSampler::memory_bytes(shape) > usable) {
    if (shape.window <= kWindowGrain) {
      throw OutOfMemory(
          fmt::format("{} needs {} of memory to sample from, and {} can be used", shape.config.name,
                      format_size(TokenSampler::memory_bytes(shape)), format_size(usable)),
          "sample on a machine with more memory");
    }
    shape.window /= 2;
  }
  return shape;
}

// A directory's model with its weights: a checkpoint's, in fp32, or Hugging Face's; or an adapter,
// with the weights of its base.
class SampledModel {
 public:
  SampledModel(const SampleOptions& options, Log& log) : directory_(options.model_directory) {
    const std::string& directory = options.model_directory;
    if (!std::filesystem::is_directory(directory)) refuse_absent();
    if (is_checkpoint(directory)) {
      checkpoint_ = std::make_unique<Checkpoint>(directory);
      shape_ = {checkpoint_->model(), DType::kF32};
      checkpoint_->open(parameter_layout(shape_.config));
    } else {
      if (!has_config(directory)) take_adapter();
      shape_.config = load_model_config(directory_, options.ignored_config_keys);
      if (adapter_ != nullptr) shape_.config = adapter_->adapted(shape_.config);
      weights_ = std::make_unique<HfDirectory>(directory_, shape_.config,
                                               parameter_layout(shape_.config), log);
      shape_.compute_type = compute_type_of(weights_->types());
    }
    load_tokenizer_of(options.tokenizer, log);
  }

  const Tokenizer& tokenizer() const { return *tokenizer_; }

  // Without window and threads.
  const TokenSampler::Shape& shape() const { return shape_; }

  void read(const UnitLayout& unit, const ParameterTensor& tensor, std::int64_t begin,
            std::span<float> out) const {
    if (checkpoint_ != nullptr) {
      checkpoint_->read(StateField::kMaster, unit, tensor.offset + begin, out);
    } else if (is_adapter(tensor.kind)) {
      adapter_->read(tensor, begin, out);
    } else {
      weights_->read(tensor, begin, out);
    }
  }

 private:
  static bool has_config(const std::string& directory) {
    return std::filesystem::exists(std::filesystem::path(directory) / "config.json");
  }
  // The model is then its base.
  void take_adapter() {
    if (!is_adapter_directory(directory_)) refuse("neither a model, an adapter nor a checkpoint");
    adapter_ = std::make_unique<AdapterDirectory>(directory_);
    if (!has_config(adapter_->base_model())) {
      throw ConfigError(
          fmt::format("--model {}: the base of this adapter is '{}', which is no "
                      "model directory here",
                      directory_, adapter_->base_model()),
          "merge it first: terrace merge BASE ADAPTER DIR, with the base's directory");
    }
    directory_ = adapter_->base_model();
  }
  // --tokenizer, and the directory that auto means.
  struct TokenizerChoice {
    std::string name;
    std::string directory;
    bool doubts_bytes = true;  // nothing says that the ids are bytes
  };
  // A checkpoint has no tokenizer: its run was told of one.
  TokenizerChoice tokenizer_choice(const std::string& asked, Log& log) const {
    if (checkpoint_ == nullptr) {
      const bool has_own =
          adapter_ != nullptr && !find_tokenizer_file(adapter_->directory()).empty();
      return {asked, has_own ? adapter_->directory() : directory_};
    }
    if (asked != "auto") return {asked, directory_, false};
    const std::optional<TrainOptions> run = options_of_run(directory_, log);
    if (!run) return {asked, directory_};
    const bool is_bytes = trained_on_bytes(*run, shape_.config.vocabulary);
    return {tokenizer_of_ids(*run, is_bytes), run->model.model, !is_bytes};
  }
  void load_tokenizer_of(const std::string& asked, Log& log) {
    const TokenizerChoice choice = tokenizer_choice(asked, log);
    tokenizer_ = choose_tokenizer(choice.name, choice.directory, log);
    if (tokenizer_->vocabulary() > shape_.config.vocabulary) {
      refuse(fmt::format("the tokenizer has {} ids, and the model's vocabulary is {}",
                         tokenizer_->vocabulary(), shape_.config.vocabulary));
    }
    const bool is_bytes = tokenizer_path(choice.name, choice.directory).empty();
    if (!is_bytes || !choice.doubts_bytes) return;
    const std::string foreign = why_bytes_are_foreign(choice.directory, shape_.config);
    if (!foreign.empty()) log.warning(foreign);
  }

  [[noreturn]] void refuse_absent() const {
    if (!is_hub_name(directory_)) refuse("not a directory");
    throw ConfigError(fmt::format("--model {}: there is no such directory, and nothing is "
                                  "downloaded",
                                  directory_),
                      download_remedy(directory_));
  }
  [[noreturn]] void refuse(const std::string& why) const {
    throw ConfigError(fmt::format("--model {}: {}", directory_, why),
                      "name the final/ or checkpoint-N of a run, and with --tokenizer what it was "
                      "trained with");
  }

  std::string directory_;
  TokenSampler::Shape shape_;
  std::unique_ptr<Checkpoint> checkpoint_;  // one of the two
  std::unique_ptr<HfDirectory> weights_;
  std::unique_ptr<AdapterDirectory> adapter_;  // beside the weights of its base
  std::unique_ptr<Tokenizer> tokenizer_;
};

// The prompt's ids behind the tokenizer's beginning.
std::vector<std::int32_t> prompt_ids(const Tokenizer& tokenizer, const std::string& prompt) {
  std::vector<std::int32_t> ids;
  if (tokenizer.begin_token()) ids.push_back(*tokenizer.begin_token());
  tokenizer.encode(prompt, ids);
  if (ids.empty()) {
    throw ConfigError(fmt::format("--prompt {}: the tokenizer makes no tokens of it", prompt),
                      "give another text to continue");
  }
  return ids;
}

// What the last id adds to the text of those before it.
std::string text_of_last(const Tokenizer& tokenizer, std::span<const std::int32_t> ids) {
  const std::size_t known = std::min<std::size_t>(ids.size(), 2);
  const std::string text = tokenizer.decode(ids.last(known));
  return text.substr(
      std::min(text.size(), tokenizer.decode(ids.last(known).first(known - 1)).size()));
}

}  // namespace

TokenSampler::Plan::Plan(const UnitCompute& body, const UnitCompute& head, int threads) {
  const auto take = [&](std::size_t size_bytes) {
    const std::size_t offset = total_bytes;
    total_bytes += round_up(size_bytes, 64);
    return offset;
  };
  const ComputeModel model = model_of(body, threads);
  for (const UnitModel& unit : model.units) {
    parameters.push_back(
        take(static_cast<std::size_t>(unit.padded_elements) * size_of(model.compute_type)));
  }
  constants = take(model.constants_bytes);
  tokens = take(model.tokens_bytes);
  hidden = take(model.hidden_bytes);
  hidden_out = take(model.hidden_bytes);
  std::size_t saved_max = 0;
  for (const UnitModel& unit : model.units) saved_max = std::max(saved_max, unit.saved_bytes);
  saved = take(saved_max);
  const std::int64_t vocabulary = body.layout().front().tensors.front().rows;
  logits = take(static_cast<std::size_t>(vocabulary) * sizeof(float));
  workspace_bytes = std::max(model.workspace_bytes, model_of(head, threads).workspace_bytes);
  workspace = take(workspace_bytes);
}

std::size_t TokenSampler::memory_bytes(const Shape& shape) {
  const std::vector<UnitLayout> layout = parameter_layout(shape.config);
  const UnitCompute body(shape.config, layout, {shape.compute_type, {1, shape.window}, {}},
                         cpu_kernels());
  const UnitCompute head(shape.config, layout, {shape.compute_type, {1, 1}, {}}, cpu_kernels());
  return Plan(body, head, shape.threads).total_bytes;
}

TokenSampler::TokenSampler(const Shape& shape, FetchParameter fetch)
    : TokenSampler(shape, parameter_layout(shape.config), fetch) {}

TokenSampler::TokenSampler(const Shape& shape, const std::vector<UnitLayout>& layout,
                           FetchParameter fetch)
    : body_(shape.config, layout, {shape.compute_type, {1, shape.window}, {}}, cpu_kernels()),
      head_(shape.config, layout, {shape.compute_type, {1, 1}, {}}, cpu_kernels()),
      workers_(shape.threads),
      plan_(body_, head_, shape.threads),
      row_bytes_(static_cast<std::size_t>(shape.config.width) * size_of(shape.compute_type)),
      vocabulary_(shape.config.vocabulary),
      follows_text_(shape.rope_of_text &&
                    std::ranges::any_of(shape.config.ropes, depends_on_length)),
      memory_(plan_.total_bytes, {}) {
  for (const UnitLayout& unit : body_.layout()) load_unit(unit, fetch);
  fill_rope_tables(shape.window);
}

void TokenSampler::fill_rope_tables(std::int64_t length) {
  const std::vector<float> tables = body_.constants(length);
  if (tables.empty()) return;
  std::memcpy(at(plan_.constants), tables.data(), tables.size() * sizeof(float));
}

void TokenSampler::load_unit(const UnitLayout& unit, FetchParameter fetch) {
  const DType type = body_.compute_type();
  std::byte* base = at(plan_.parameters.at(static_cast<std::size_t>(unit.index)));
  std::vector<float> values;
  for (const ParameterTensor& tensor : unit.tensors) {
    const std::int64_t grain = tensor.stored_transposed ? tensor.elements() : kFetchElements;
    for (std::int64_t begin = 0; begin < tensor.elements(); begin += grain) {
      values.resize(static_cast<std::size_t>(std::min(grain, tensor.elements() - begin)));
      fetch(unit, tensor, begin, values);
      std::byte* target = base + static_cast<std::size_t>(tensor.offset + begin) * size_of(type);
      if (type == DType::kF32) {
        std::memcpy(target, values.data(), values.size() * sizeof(float));
      } else {
        std::transform(values.begin(), values.end(), reinterpret_cast<Bf16*>(target),
                       to_bf16_ties_away);
      }
    }
  }
}

std::span<const float> TokenSampler::logits_after(std::span<const std::int32_t> ids) {
  TERRACE_CHECK(!ids.empty());
  ids = ids.last(std::min(ids.size(), static_cast<std::size_t>(window())));
  if (follows_text_) fill_rope_tables(static_cast<std::int64_t>(ids.size()));
  // Attention looks back only, so what is behind the ids does not matter. Targets are not counted.
  auto* tokens = reinterpret_cast<std::int32_t*>(at(plan_.tokens));
  std::fill_n(tokens, window(), 0);
  std::fill_n(tokens + window(), window(), -1);
  std::ranges::copy(ids, tokens);

  const KernelContext context{
      &workers_, NativeStream{}, {at(plan_.workspace), plan_.workspace_bytes}};
  const std::size_t last = body_.layout().size() - 1;
  UnitMemory memory;
  memory.of(Role::kConstants) = at(plan_.constants);
  memory.of(Role::kTokens) = at(plan_.tokens);
  memory.of(Role::kSaved) = at(plan_.saved);
  std::byte* hidden = at(plan_.hidden);
  std::byte* next = at(plan_.hidden_out);
  for (std::size_t unit = 0; unit < last; ++unit) {
    memory.of(Role::kParameters) = at(plan_.parameters.at(unit));
    memory.of(Role::kHidden) = hidden;
    memory.of(Role::kHiddenOut) = next;
    body_.run(context, static_cast<std::int64_t>(unit), {}, memory);
    std::swap(hidden, next);
  }

  std::array<std::int32_t, 2> head_tokens = {0, -1};
  double loss_sum = 0;
  UnitMemory head_memory;
  head_memory.of(Role::kParameters) = at(plan_.parameters.at(last));
  head_memory.of(Role::kTiedParameters) = at(plan_.parameters.front());
  head_memory.of(Role::kTokens) = reinterpret_cast<std::byte*>(head_tokens.data());
  std::memcpy(next, hidden + (ids.size() - 1) * row_bytes_, row_bytes_);  // on a boundary
  head_memory.of(Role::kHidden) = next;
  head_memory.of(Role::kLosses) = reinterpret_cast<std::byte*>(&loss_sum);
  head_memory.of(Role::kLogits) = at(plan_.logits);
  head_.run(context, static_cast<std::int64_t>(last), {}, head_memory);
  return {reinterpret_cast<const float*>(at(plan_.logits)), static_cast<std::size_t>(vocabulary_)};
}

std::int32_t choose_id(std::span<const float> logits, double temperature, std::uint64_t seed,
                       std::uint64_t index) {
  TERRACE_CHECK(!logits.empty());
  if (!std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); })) {
    throw NotFinite("the model's logits are not all finite numbers",
                    "sample from an earlier checkpoint");
  }
  const auto likeliest = std::ranges::max_element(logits);
  if (temperature == 0) return static_cast<std::int32_t>(likeliest - logits.begin());
  std::vector<double> sums;  // of the likelihoods up to each id
  sums.reserve(logits.size());
  double sum = 0;
  for (const float logit : logits) {
    sum += std::exp((static_cast<double>(logit) - static_cast<double>(*likeliest)) / temperature);
    sums.push_back(sum);
  }
  const auto words = philox({seed}, {index, kRandomStream, 0});
  const double uniform = (words[0] + words[1] * 0x1p-32) * 0x1p-32;
  const auto chosen = std::upper_bound(sums.begin(), sums.end() - 1, uniform * sum);
  return static_cast<std::int32_t>(chosen - sums.begin());
}

void sample_text(const SampleOptions& options, FunctionRef<void(std::string_view)> write,
                 Log& log) {
  const SampledModel model(options, log);
  const Tokenizer& tokenizer = model.tokenizer();
  std::vector<std::int32_t> ids = prompt_ids(tokenizer, options.prompt);
  const auto fetch = [&](const UnitLayout& unit, const ParameterTensor& tensor, std::int64_t begin,
                         std::span<float> out) { model.read(unit, tensor, begin, out); };
  TokenSampler::Shape shape = model.shape();
  shape.rope_of_text = true;
  shape.threads = options.threads > 0 ? options.threads : read_host_limits().usable_cpus();
  const auto text_tokens = static_cast<std::int64_t>(ids.size()) + options.max_new_tokens - 1;
  TokenSampler sampler(fitting_shape(std::move(shape), text_tokens), fetch);
  write(options.prompt);
  for (std::int64_t i = 0; i < options.max_new_tokens; ++i) {
    // The model may have more ids than its tokenizer: those have no text.
    const auto logits =
        sampler.logits_after(ids).first(static_cast<std::size_t>(tokenizer.vocabulary()));
    ids.push_back(
        choose_id(logits, options.temperature, options.seed, static_cast<std::uint64_t>(i)));
    if (ids.back() == tokenizer.end_token()) return;
    write(text_of_last(tokenizer, ids));
  }
}

}  // namespace terrace
