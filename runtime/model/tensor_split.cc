#include "runtime/model/tensor_split.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/error.h"

namespace terrace {
namespace {

void require_parts(std::int64_t count, std::string_view what, const ModelConfig& config,
                   const TensorSplit& split, OptionNames name_of_option) {
  if (count % split.ranks == 0) return;
  const std::string_view ranks = name_of_option(Option::kTensorParallel);
  throw ConfigError(
      fmt::format("{} {}: {} has {} {}, which is not a multiple of it", ranks, split.ranks,
                  config.name.empty() ? "the model" : config.name, count, what),
      fmt::format("give {} a number that divides {}", ranks, count));
}

bool has_dense_layers(const ModelConfig& config) {
  return config.layer_options.empty() ||
         !std::ranges::all_of(config.layer_options, &LayerOptions::has_experts);
}

}  // namespace

std::int64_t TensorSlice::before(std::int64_t whole, std::int32_t of_rank) const {
  const std::int64_t stride = ranks * run;
  return whole / stride * run + std::clamp<std::int64_t>(whole % stride - of_rank * run, 0, run);
}

void check_tensor_split(const ModelConfig& config, std::int64_t rows, const TensorSplit& split,
                        OptionNames name_of_option) {
  if (split.ranks == 1) return;
  require_parts(config.heads, "heads", config, split, name_of_option);
  require_parts(config.key_value_heads, "key-value heads", config, split, name_of_option);
  if (has_dense_layers(config)) {
    require_parts(config.intermediate, "intermediate columns", config, split, name_of_option);
  }
  require_parts(config.experts.intermediate, "intermediate columns in each expert", config, split,
                name_of_option);
  require_parts(config.experts.shared_intermediate, "intermediate columns in the shared expert",
                config, split, name_of_option);
  const std::string_view ranks = name_of_option(Option::kTensorParallel);
  if ((split.ranks - 1) * split.part_of(config.vocabulary) >= config.vocabulary) {
    throw ConfigError(fmt::format("{} {}: a vocabulary of {} does not give every rank a part",
                                  ranks, split.ranks, config.vocabulary),
                      fmt::format("give {} a smaller number", ranks));
  }
  if (split.shares_rows && rows % split.ranks != 0) {
    const std::string_view shares = name_of_option(Option::kSequenceParallel);
    const std::string_view length = name_of_option(Option::kSequenceLength);
    throw ConfigError(
        fmt::format("{} on: the {} rows of a micro-batch ({} x {}) are not a multiple of {} {}",
                    shares, rows, name_of_option(Option::kMicroBatchSize), length, ranks,
                    split.ranks),
        fmt::format("give a {} that {} divides, or {} off", length, split.ranks, shares));
  }
}

ModelConfig config_of_part(const ModelConfig& config, const TensorSplit& split) {
  ModelConfig part = config;
  if (split.ranks == 1) return part;
  part.heads /= split.ranks;
  part.key_value_heads /= split.ranks;
  part.intermediate /= split.ranks;
  part.experts.intermediate /= split.ranks;
  part.experts.shared_intermediate /= split.ranks;
  part.vocabulary =
      std::min(split.part_of(config.vocabulary), config.vocabulary - first_token(config, split));
  return part;
}

std::int64_t first_token(const ModelConfig& config, const TensorSplit& split) {
  return split.rank * split.part_of(config.vocabulary);
}

}  // namespace terrace
