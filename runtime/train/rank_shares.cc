#include "runtime/train/rank_shares.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace terrace {
namespace {

void check_shares(const TrainOptions& options, std::int64_t ranks) {
  const std::string flag = "--rank-shares";
  if (ranks == 1) {
    throw ConfigError(flag + ": there is only one data-parallel rank, which has all samples",
                      "leave it out, or start more ranks");
  }
  const std::size_t named = options.ranks.rank_shares.size();
  if (named > 0 && std::cmp_not_equal(named, ranks)) {
    throw ConfigError(
        fmt::format("{} has {} numbers, but there are {} data-parallel ranks", flag, named, ranks),
        "give one number for each");
  }
  if (options.ranks.measures_rank_shares && options.batch.gradient_accumulation_steps == 1) {
    throw ConfigError(flag + " auto: every rank has one micro-batch, which cannot be divided",
                      "raise --gradient-accumulation-steps; to keep the size of the batch, divide "
                      "--micro-batch-size by the same factor");
  }
}

// The figures of routers are means over all micro-batches of a program, so a model with experts has
// all of them in every step.
void check_experts(const TrainOptions& options, const ModelConfig& model) {
  if (model.experts.count == 0) return;
  const bool has_shares = options.ranks.has_shares();
  if (!has_shares && !options.batch.changes_accumulation()) return;
  throw ConfigError(
      fmt::format("{} is not built for models with experts, such as {}",
                  has_shares ? "--rank-shares" : "--accumulation-schedule", model.name),
      "leave it out");
}

}  // namespace

std::vector<std::int64_t> divide_by_shares(std::int64_t all,
                                           const std::vector<std::int64_t>& shares) {
  const std::int64_t whole = std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
  std::int64_t divisor = whole;
  for (const std::int64_t share : shares) divisor = std::gcd(divisor, share);
  const std::int64_t unit = whole / divisor;  // micro-batches in the smallest whole division
  if (all % unit != 0) {
    const auto ranks = static_cast<std::int64_t>(shares.size());
    const std::int64_t steps = unit / std::gcd(unit, ranks);
    throw ConfigError(fmt::format("--rank-shares {}: the {} micro-batches of a step cannot be "
                                  "divided in these proportions",
                                  fmt::join(shares, ","), all),
                      fmt::format("give a multiple of {} as --gradient-accumulation-steps", steps));
  }
  std::vector<std::int64_t> parts;
  for (const std::int64_t share : shares) parts.push_back(all / unit * (share / divisor));
  return parts;
}

std::vector<std::int64_t> divide_by_time(std::int64_t all, std::span<const double> seconds,
                                         std::int64_t most) {
  const auto ranks = static_cast<std::int64_t>(seconds.size());
  TERRACE_CHECK_LE(ranks, all);
  TERRACE_CHECK_LE(all, ranks * most);
  std::vector<std::int64_t> parts(seconds.size(), 1);
  for (std::int64_t given = ranks; given < all; ++given) {
    // The next micro-batch goes to the rank that would end first with it.
    std::size_t next = seconds.size();
    const auto end_of = [&](std::size_t rank) {
      return static_cast<double>(parts[rank] + 1) * seconds[rank];
    };
    for (std::size_t rank = 0; rank < seconds.size(); ++rank) {
      if (parts[rank] == most) continue;
      if (next == seconds.size() || end_of(rank) < end_of(next)) next = rank;
    }
    ++parts[next];
  }
  return parts;
}

void DividedStep::take(const std::vector<std::int64_t>& measured, std::int64_t ranks) {
  const std::int64_t sum = std::accumulate(measured.begin(), measured.end(), std::int64_t{0});
  if (std::ssize(measured) != ranks || sum != all) return;
  if (std::ranges::min(measured) < 1 || std::ranges::max(measured) > most) return;
  by_rank = measured;
}

DividedStep divided_step(const TrainOptions& options, std::int64_t data_ranks) {
  const std::int64_t of_rank = options.batch.gradient_accumulation_steps;
  DividedStep step = {.all = of_rank * data_ranks, .most = of_rank, .by_rank = {}};
  if (!options.ranks.has_shares()) return step;
  check_shares(options, data_ranks);
  if (options.ranks.measures_rank_shares) {
    // Memory is planned for a rank that is twice as fast as the mean.
    step.most = std::min(2 * of_rank, step.all - (data_ranks - 1));
  } else {
    step.by_rank = divide_by_shares(step.all, options.ranks.rank_shares);
    step.most = std::ranges::max(step.by_rank);
  }
  return step;
}

void set_micro_batches(const TrainOptions& options, const RankGroup& ranks,
                       ModelRuntimeOptions& engine) {
  check_experts(options, engine.model);
  const DividedStep step = divided_step(options, ranks.data_ranks());
  engine.placement.micro_batches = static_cast<std::int32_t>(step.most);
  if (options.ranks.measures_rank_shares) engine.evaluates = true;
}

std::vector<std::int64_t> measure_shares(const DividedStep& step, ModelRuntime& engine,
                                         const RankSamples& samples, const RankGroup& ranks) {
  constexpr double kSeconds = 1;
  constexpr int kRoundsMost = 20;
  const std::vector<std::int32_t> tokens(samples.step_elements());
  engine.evaluate(tokens);  // what is slow only once
  double seconds = 0;
  int rounds = 0;
  do {
    engine.evaluate(tokens);
    seconds += engine.evaluated_compute_s();
    ++rounds;
  } while (ranks.any(seconds < kSeconds) && rounds < kRoundsMost);
  const std::vector<double> of_ranks =
      of_all_ranks(*ranks.world(), seconds / rounds / static_cast<double>(step.most));
  std::vector<double> of_data_ranks(static_cast<std::size_t>(ranks.data_ranks()));
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    double& slowest = of_data_ranks[static_cast<std::size_t>(
        position_of(ranks.steps().shape, static_cast<int>(rank)).data)];
    slowest = std::max(slowest, of_ranks[rank]);
  }
  return divide_by_time(step.all, of_data_ranks, step.most);
}

std::string describe_shares(const std::vector<std::int64_t>& by_rank, const std::string& origin) {
  return fmt::format("micro-batches of each step by data-parallel rank: {} ({})",
                     fmt::join(by_rank, ", "), origin);
}

std::string describe_planned_shares(const TrainOptions& options, const DividedStep& step) {
  if (!options.ranks.has_shares()) return "";
  if (!options.ranks.measures_rank_shares) {
    return '\n' + describe_shares(step.by_rank, "by --rank-shares");
  }
  return fmt::format(
      "\nmicro-batches of each step: {} over all data-parallel ranks, at most {} for one; the "
      "speed of each rank is measured before the first step (--rank-shares auto)",
      step.all, step.most);
}

}  // namespace terrace
