#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/train/rank_group.h"
#include "runtime/train/start_obstacles.h"
#include "runtime/train/step_prediction.h"

namespace terrace {

// The document that `terrace train --dry-run --json` prints (docs/dry-run.md).
struct DryRunDocument {
  bool fits = true;     // the budgets asked for
  TierBudgets budgets;  // asked for, or this machine's; unset: none
  std::array<std::size_t, kTierCount> least_bytes{};
  Ledger ledger;  // of all ranks: see gather_ledger()
  // The bytes that the links carry and the number of ops, over all ranks together.
  std::uint64_t upload_bytes = 0;
  std::uint64_t download_bytes = 0;
  std::uint64_t nvme_read_bytes = 0;
  std::uint64_t nvme_write_bytes = 0;
  std::uint64_t collective_bytes = 0;
  std::uint64_t ops = 0;
  std::optional<StepPrediction> prediction;
  std::int64_t tokens_per_step = 0;
  std::string documents;                 // documents_json()
  std::string reasons;                   // reasons_json()
  std::vector<StartObstacle> obstacles;  // on this machine
};

// Returns, for each tier, the peak of the rank with the largest peak, and that rank's budget and
// accounts. All ranks call it.
Ledger gather_ledger(const Ledger& own, const RankGroup& ranks);

// Adds up the bytes that the links carry in a step, and its ops. All ranks call it.
void gather_step(const Program& own, const RankGroup& ranks, DryRunDocument& document);

// Returns the memory of each tier and the prediction, if there is one, as an object whose keys
// run.json has, too (docs/metrics.md). `ranks`: memory_json().
std::string plan_figures_json(const Ledger& ledger, const std::optional<StepPrediction>& prediction,
                              std::int64_t tokens_per_step, const std::string& ranks = {});

std::string to_json(const DryRunDocument& document);

}  // namespace terrace
