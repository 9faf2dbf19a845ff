#include "runtime/model/tensor_split.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/error.h"

namespace terrace {
namespace {

void require_parts(std::int64_t count, std::string_view what, const ModelConfig& config,
                   const TensorSplit& split) {
  if (count % split.ranks == 0) return;
  throw ConfigError(
      fmt::format("--tensor-parallel {}: {} has {} {}, which is no multiple of it", split.ranks,
                  config.name.empty() ? "the model" : config.name, count, what),
      fmt::format("give --tensor-parallel a number that divides {}", count));
}

}  // namespace

std::int64_t TensorSlice::before(std::int64_t whole, std::int32_t of_rank) const {
  const std::int64_t stride = ranks * run;
  return whole / stride * run + std::clamp<std::int64_t>(whole % stride - of_rank * run, 0, run);
}

void check_tensor_split(const ModelConfig& config, std::int64_t rows, const TensorSplit& split) {
  if (split.ranks == 1) return;
  require_parts(config.heads, "heads", config, split);
  require_parts(config.key_value_heads, "key-value heads", config, split);
  require_parts(config.intermediate, "intermediate columns", config, split);
  if ((split.ranks - 1) * split.part_of(config.vocabulary) >= config.vocabulary) {
    throw ConfigError(fmt::format("--tensor-parallel {}: a vocabulary of {} does not have a part "
                                  "for each rank",
                                  split.ranks, config.vocabulary),
                      "give --tensor-parallel a smaller number");
  }
  if (split.shares_rows && rows % split.ranks != 0) {
    throw ConfigError(
        fmt::format("--sequence-parallel on: the {} rows of a micro-batch (--micro-batch-size x "
                    "--sequence-length) are no multiple of --tensor-parallel {}",
                    rows, split.ranks),
        fmt::format("give a --sequence-length that {} divides, or --sequence-parallel off",
                    split.ranks));
  }
}

ModelConfig config_of_part(const ModelConfig& config, const TensorSplit& split) {
  ModelConfig part = config;
  if (split.ranks == 1) return part;
  part.heads /= split.ranks;
  part.key_value_heads /= split.ranks;
  part.intermediate /= split.ranks;
  part.vocabulary =
      std::min(split.part_of(config.vocabulary), config.vocabulary - first_token(config, split));
  return part;
}

std::int64_t first_token(const ModelConfig& config, const TensorSplit& split) {
  return split.rank * split.part_of(config.vocabulary);
}

}  // namespace terrace
