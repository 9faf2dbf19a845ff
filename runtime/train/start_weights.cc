#include "runtime/train/start_weights.h"

#include <fmt/format.h>

#include "base/error.h"
#include "runtime/train/rank_agreement.h"
#include "runtime/train/resume.h"

namespace terrace {

std::unique_ptr<HfDirectory> open_start_weights(const ModelOptions& options,
                                                const ModelConfig& model,
                                                const std::vector<UnitLayout>& layout,
                                                const RankGroup& ranks, Log& log) {
  const bool takes = takes_weights(options);
  if (!ranks.is_same(takes ? 1 : 0)) {
    throw ConfigError(fmt::format("some ranks find weights in {}, others do not", options.model),
                      "put --model on a file system that all ranks see, or give --init random");
  }
  if (!takes) return nullptr;
  SilentLog silent;
  auto weights =
      std::make_unique<HfDirectory>(options.model, model, layout, ranks.is_first() ? log : silent);
  check_same_weights(ranks, options.model, *weights);
  return weights;
}

}  // namespace terrace
