#include "runtime/train/rank_agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "runtime/config/train_config.h"

namespace terrace {
namespace {

// Returns the options without those in which ranks may differ. The content that paths lead to is
// compared elsewhere.
TrainOptions shared_options(const TrainOptions& options) {
  TrainOptions shared = options;
  const TrainOptions defaults;
  shared.model.model = defaults.model.model;
  if (!shared.model.lora.adapter.empty()) shared.model.lora.adapter = "an adapter";
  shared.data.data = defaults.data.data;
  for (ValidationSet& set : shared.data.validation_data) set.paths = {"files"};
  shared.tiers.device.ordinal = defaults.tiers.device.ordinal;
  if (shared.tiers.device_memory) shared.tiers.device_memory = 1;
  shared.tiers.host_memory = defaults.tiers.host_memory;
  shared.tiers.nvme.resize(std::min<std::size_t>(shared.tiers.nvme.size(), 1));
  for (NvmeDirectory& directory : shared.tiers.nvme) directory = {"drive", std::nullopt};
  shared.tiers.io_engine = defaults.tiers.io_engine;
  shared.tiers.threads = defaults.tiers.threads;
  shared.ranks.collective_timeout_s = defaults.ranks.collective_timeout_s;
  RunOptions& run = shared.run;
  run.run_dir = defaults.run.run_dir;
  run.log_every = defaults.run.log_every;
  run.progress = defaults.run.progress;
  run.trace_steps = defaults.run.trace_steps;
  if (run.resume != "none" && run.resume != "auto") run.resume = "a checkpoint";
  return shared;
}

std::uint64_t hash_text(const std::string& text) {
  return hash_bytes(std::as_bytes(std::span(text)));
}

std::string computed_model(const ModelConfig& model) {
  return fmt::format("{} {} {}", describe(model), model.initializer_range, describe(model.adapter));
}

}  // namespace

void check_same_options(Communicator* world, const TrainOptions& options) {
  if (world == nullptr) return;
  const TrainOptions shared = shared_options(options);
  const std::string of_first = text_of_rank(*world, 0, to_toml(shared));
  const std::string here = fmt::format("{}", fmt::join(differing_keys(of_first, shared), ", "));
  const std::vector<std::int64_t> differs =
      of_all_ranks(*world, static_cast<std::int64_t>(here.empty() ? 0 : 1));
  const auto other = std::ranges::find(differs, 1);
  if (other == differs.end()) return;
  const auto rank = static_cast<int>(other - differs.begin());
  throw ConfigError(fmt::format("rank {} was started with different flags than rank 0: {}", rank,
                                text_of_rank(*world, rank, here)),
                    "start all ranks with the same flags; paths, budgets and threads may differ");
}

void check_same_model(const RankGroup& ranks, const ModelConfig& model) {
  if (ranks.is_same(hash_text(computed_model(model)))) return;
  throw ConfigError("the ranks have read different models: their config.json files differ",
                    "give all ranks a --model with the same content");
}

void check_same_data(const RankGroup& ranks, const Dataset& data) {
  const auto same = [&](std::int64_t tokens) {
    return ranks.is_same(static_cast<std::uint64_t>(tokens));
  };
  const auto same_hash = [&](std::optional<std::uint64_t> hash) {
    return ranks.is_same(hash.value_or(0));
  };
  const bool same_training = same(data.training_tokens());
  // All ranks have the same flags, and therefore the same sets, if sets are named.
  const std::size_t sets = std::max<std::size_t>(1, data.validation_sets());
  bool same_validation = true;
  for (std::size_t set = 0; set < sets; ++set) {
    same_validation = same(data.validation_tokens(set)) && same_validation;
  }
  // A single rank need not read the data for this.
  bool same_content = ranks.world() == nullptr || same_hash(data.training_hash());
  for (std::size_t set = 0; set < sets && ranks.world() != nullptr; ++set) {
    same_content = same_hash(data.validation_hash(set)) && same_content;
  }
  if (same_training && same_validation && same_content) return;
  throw ConfigError(fmt::format("the ranks have found different data: this rank has {} training "
                                "and {} validation tokens{}",
                                data.training_tokens(), data.validation_tokens(0),
                                same_training && same_validation ? ", and other ranks have "
                                                                   "different ones"
                                                                 : ""),
                    "give all ranks --data and --validation-data with the same content");
}

void check_same_checkpoint(const RankGroup& ranks, const Checkpoint* checkpoint) {
  const bool same_step = ranks.is_same(
      static_cast<std::uint64_t>(checkpoint == nullptr ? -1 : checkpoint->progress().step));
  const bool same_content = ranks.is_same(checkpoint == nullptr ? 0 : checkpoint->fingerprint());
  if (same_step && same_content) return;
  throw ConfigError("the ranks have found different checkpoints to resume from",
                    "put --run-dir and --resume on a file system that all ranks see");
}

void check_same_weights(const RankGroup& ranks, const std::string& directory,
                        const HfDirectory& weights) {
  if (ranks.world() == nullptr || ranks.is_same(weights.fingerprint())) return;
  throw ConfigError(
      fmt::format("the ranks have found different weights in --model (here {})", directory),
      "give all ranks a --model with the same content, for example on a file system that all of "
      "them see");
}

void check_same_parameters(const RankGroup& ranks, std::uint64_t hash) {
  if (ranks.is_same_in_copies(hash)) return;
  throw ConfigError(
      "the ranks have read different parameters, although the files seemed to be the same",
      "compare the checksums of --model on their hosts: one copy is damaged or belongs to another "
      "model");
}

}  // namespace terrace
