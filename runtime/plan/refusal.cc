#include "runtime/plan/refusal.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <set>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "runtime/plan/home_choice.h"
#include "runtime/plan/least_budget.h"
#include "runtime/plan/unit_names.h"

namespace terrace {
namespace {

// A lowered value that suffices by live bytes may not suffice when it is packed. Then lower values
// are tried, this often at most.
constexpr std::size_t kConfirmationsMax = 3;

// The advice of a refusal: budgets that are enough, and other changes that were tried and help.
class Remedies {
 public:
  // `lacking_bytes` is over all tiers.
  explicit Remedies(std::size_t lacking_bytes) : lacking_bytes_(lacking_bytes) {}

  // Adds a change with which the step fits.
  void enough(const std::string& change) { enough_.push_back(change); }

  // Adds a change that saves `saved` of the bytes that the step lacks.
  void helpful(const std::string& change, std::size_t saved) {
    if (saved < lacking_bytes_ / kNoticeablePart) return;
    helpful_.push_back(fmt::format("{} (up to {} less)", change, format_size(saved)));
  }

  std::string text() const {
    if (enough_.size() == 1 && helpful_.empty()) return "to make it fit: " + enough_.front();
    std::string text = "to make it fit, do one of these:";
    for (const std::string& change : enough_) text += "\n  " + change;
    if (!helpful_.empty())
      text +=
          "\n"
          "these help, but are not enough on their own:";
    for (const std::string& change : helpful_) text += "\n  " + change;
    return text;
  }

 private:
  static constexpr std::size_t kNoticeablePart = 16;

  std::size_t lacking_bytes_;
  std::vector<std::string> enough_, helpful_;
};

// Returns the step as each stage of its pipeline has it, the model's own stage first.
std::vector<StepModel> stages_of(const StepModel& model) {
  std::vector<StepModel> stages = {model};
  for (std::int32_t s = 0; s < model.pipeline.stages; ++s) {
    if (s == model.pipeline.stage) continue;
    stages.push_back(model);
    stages.back().pipeline.stage = s;
  }
  return stages;
}

class Refusal {
 public:
  Refusal(const StepModel& model, const PlacementRequest& request, const TierBudgets& budgets)
      : model_(model),
        request_(request),
        budgets_(budgets),
        stages_(stages_of(model)),
        footprints_(stages_.size()) {
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      const HomeChoice choice(stages_[s], request, budgets, footprints_[s]);
      ledgers_.push_back(choice.smallest_plan().ledger);
    }
  }

  [[noreturn]] void raise() {
    const std::size_t lacking = lacking_live_bytes(model_, request_);
    Remedies remedies(lacking_bytes());
    remedies.enough(raised_budgets());
    try_tiers(lacking, remedies);
    for (const Reduction& reduction : request_.reductions) {
      try_reduction(reduction, lacking, remedies);
    }
    try_tensor_parallel(remedies);
    throw OutOfMemory(fmt::format("the step does not fit: {}\n{}{}{}", shortfall(), asked(),
                                  largest_unit(), to_text(worst_ledger())),
                      remedies.text());
  }

 private:
  std::string_view name_of(Option option) const { return request_.name_of_option(option); }

  const Ledger& worst_ledger() const {
    const auto over = [](const Ledger& ledger) {
      std::size_t bytes = 0;
      for (const Tier tier : kTiers) bytes += ledger[tier].over_bytes();
      return bytes;
    };
    return *std::ranges::max_element(ledgers_, {}, over);
  }

  std::string shortfall() const {
    const bool is_of_another = &worst_ledger() != &ledgers_.front();
    return describe_shortfall(worst_ledger()) +
           (is_of_another ? " on the pipeline stage with the largest need" : "");
  }

  std::string asked() const {
    return request_.asked.empty() ? "" : fmt::format("asked for: {}\n", request_.asked);
  }

  // Returns the bytes by which the tiers are too small, each on the stage that needs the most of
  // it.
  std::size_t lacking_bytes() const {
    std::size_t bytes = 0;
    for (const Tier tier : kTiers) bytes += most_over(tier);
    return bytes;
  }

  // Names new budgets for the tiers that are too small. Each is the least that suffices with the
  // budgets named before it; the tiers after it have no limit until then. All stages have the same
  // budgets.
  std::string raised_budgets() {
    TierBudgets budgets = budgets_;
    for (const Tier tier : kTiers) {
      if (most_over(tier) > 0) budgets.at(static_cast<std::size_t>(tier)).reset();
    }
    if (!are_enough(budgets)) budgets.fill(std::nullopt);
    std::string raised;
    for (const Tier tier : kTiers) {
      const auto t = static_cast<std::size_t>(tier);
      const bool is_settled = budgets.at(t) == budgets_.at(t);
      budgets.at(t) = budgets_.at(t);
      if (is_settled || are_enough(budgets)) continue;
      const std::size_t least = least_of(tier, budgets);
      budgets.at(t) = least;
      // Sizes are printed with three digits, which may be half a percent too low.
      raised += fmt::format("{} {} to {} or more", raised.empty() ? "raise" : " and raise",
                            name_of(budget_option(tier)), format_size(least + least / 128));
      const bool is_of_host = tier == Tier::kHost || (tier == Tier::kDevice && !request_.gpu);
      if (is_of_host) raised += request_.host_capacity.beyond(least);
    }
    return raised;
  }

  std::size_t most_over(Tier tier) const {
    std::size_t most = 0;
    for (const Ledger& ledger : ledgers_) most = std::max(most, ledger[tier].over_bytes());
    return most;
  }

  // Returns whether a plan fits on every stage.
  bool are_enough(const TierBudgets& budgets) {
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      if (!HomeChoice(stages_[s], request_, budgets, footprints_[s]).can_choose()) return false;
    }
    return true;
  }

  // Returns the least budget of a tier that suffices with the other budgets, which suffice if this
  // tier has no limit.
  std::size_t least_of(Tier tier, TierBudgets budgets) {
    const auto accepts = [&](std::size_t bytes) {
      budgets.at(static_cast<std::size_t>(tier)) = bytes;
      return are_enough(budgets);
    };
    std::size_t enough = 0;
    for (const Ledger& ledger : ledgers_) enough = std::max(enough, ledger[tier].peak_bytes);
    enough = round_up_budget(std::max<std::size_t>(enough, 4 * kKiB));
    while (!accepts(enough)) enough = round_up_budget(enough + enough / 4);
    return least_budget(enough, accepts);
  }

  // --- what is tried -----------------------------------------------------------------------------

  // Returns the lacking live bytes on the stage that lacks the most.
  std::size_t lacking_live_bytes(const StepModel& model, const PlacementRequest& request) const {
    std::size_t most = 0;
    for (const StepModel& stage : stages_of(model)) {
      Footprints footprints;
      const HomeChoice choice(stage, request, budgets_, footprints);
      most = std::max(most, choice.lacking_live_bytes());
    }
    return most;
  }

  // Returns whether a program fits on every stage. Asks for live bytes first, because they take
  // little time.
  bool fits(const StepModel& model, const PlacementRequest& request) const {
    if (lacking_live_bytes(model, request) > 0) return false;
    return std::ranges::all_of(stages_of(model), [&](const StepModel& stage) {
      Footprints footprints;
      return HomeChoice(stage, request, budgets_, footprints).can_choose();
    });
  }

  // Tries a drive and recomputation, where the user has not asked for them.
  void try_tiers(std::size_t lacking, Remedies& remedies) const {
    const auto try_with = [&](const std::string& change, const PlacementRequest& other) {
      if (fits(model_, other)) return remedies.enough(change);
      remedies.helpful(change, lacking - std::min(lacking, lacking_live_bytes(model_, other)));
    };
    PlacementRequest other = request_;
    other.has_nvme = true;
    if (!request_.has_nvme) try_with(fmt::format("give {}", name_of(Option::kDrive)), other);
    other = request_;
    other.recompute = true;
    if (request_.recompute != std::optional(false)) return;
    try_with(fmt::format("allow {}", name_of(Option::kRecompute)), other);
  }

  // Finds the largest lower value with which the step fits. If there is none, tells how much the
  // lowest value saves. The search goes by live bytes, and the value that it finds is checked by
  // packing.
  void try_reduction(const Reduction& reduction, std::size_t lacking, Remedies& remedies) const {
    const std::int64_t most = (reduction.value - 1) / reduction.multiple_of;
    const std::int64_t least = std::max<std::int64_t>(1, reduction.least / reduction.multiple_of);
    if (most < least) return;
    const auto value_at = [&](std::int64_t multiple) { return multiple * reduction.multiple_of; };
    const auto live_at = [&](std::int64_t multiple) {
      return lacking_live_bytes(model_at(reduction, value_at(multiple)), request_);
    };
    const std::size_t lacking_at_least = live_at(least);
    if (lacking_at_least == 0) {
      std::int64_t high = most;  // every value above it is too large
      for (std::int64_t low = least; low < high;) {
        const std::int64_t middle = (low + high + 1) / 2;
        if (live_at(middle) == 0) {
          low = middle;
        } else {
          high = middle - 1;
        }
      }
      const auto lowest = std::max(least, high - static_cast<std::int64_t>(kConfirmationsMax));
      for (std::int64_t multiple = high; multiple >= lowest; --multiple) {
        if (!fits(model_at(reduction, value_at(multiple)), request_)) continue;
        return remedies.enough(
            fmt::format("lower {} to {}", name_of(reduction.option), value_at(multiple)));
      }
    }
    remedies.helpful(fmt::format("lower {}", name_of(reduction.option)),
                     lacking - std::min(lacking, lacking_at_least));
  }

  StepModel model_at(const Reduction& reduction, std::int64_t value) const {
    StepModel model = reduction.model_with(value);
    model.zero.rank = model_.zero.rank;  // the rank that is planned for
    return model;
  }

  // --- a unit that is too large ------------------------------------------------------------------

  // Returns the most bytes of the unit's own groups, with their gradients, that a part of a pass
  // uses.
  std::size_t unit_bytes(std::int32_t unit) const {
    const UnitModel& of = model_.units.at(static_cast<std::size_t>(unit));
    const std::vector<UnitStep>& pass = of.backward.empty() ? of.forward : of.backward;
    std::size_t most = 0;
    for (const StepSpan& part : UnitModel::parts(pass)) {
      std::set<std::int32_t> used;
      for (std::int32_t s = part.begin; s < part.end; ++s) {
        const std::vector<std::int32_t>& read = pass[static_cast<std::size_t>(s)].groups;
        used.insert(read.begin(), read.end());
      }
      std::size_t bytes = 0;
      for (const std::int32_t index : used) bytes += group_bytes(of, unit, index);
      most = std::max(most, bytes);
    }
    return most;
  }

  std::size_t group_bytes(const UnitModel& of, std::int32_t unit, std::int32_t index) const {
    if (index >= std::ssize(of.groups)) return 0;  // the unit has no parameters
    const std::int32_t group = of.groups[static_cast<std::size_t>(index)];
    if (model_.owner(group) != unit) return 0;
    const ParameterGroup& own = model_.groups.at(static_cast<std::size_t>(group));
    return model_.group_bytes(group) +
           static_cast<std::size_t>(own.trained_elements()) * size_of(model_.gradient_type);
  }

  // Returns the unit with the most parameters, if these and their gradient take most of the bytes
  // needed in the tier that lacks room.
  std::optional<std::int32_t> dominating_unit() const {
    std::int32_t largest = 0;
    for (std::int32_t u = 0; u <= model_.last_unit(); ++u) {
      if (unit_bytes(u) > unit_bytes(largest)) largest = u;
    }
    const TierLedger& compute = worst_ledger()[request_.unified ? Tier::kHost : Tier::kDevice];
    if (compute.over_bytes() == 0 || unit_bytes(largest) < compute.peak_bytes / 2) {
      return std::nullopt;
    }
    return largest;
  }

  std::string largest_unit() const {
    const std::optional<std::int32_t> unit = dominating_unit();
    if (!unit.has_value()) return "";
    return fmt::format(
        "{} alone has parameters and a gradient of {}, which must be in memory at the same time\n",
        name_of_unit(model_, *unit), format_size(unit_bytes(*unit)));
  }

  // Tensor-parallel ranks divide every unit.
  void try_tensor_parallel(Remedies& remedies) const {
    if (!dominating_unit().has_value()) return;
    for (const TensorDivision& division : request_.tensor_divisions) {
      if (!fits(division.model(), request_)) continue;
      return remedies.enough(fmt::format("divide every unit over more ranks: {} {}",
                                         name_of(Option::kTensorParallel), division.ranks));
    }
  }

  const StepModel& model_;
  const PlacementRequest& request_;
  const TierBudgets& budgets_;
  // By stage, this rank's stage first.
  std::vector<StepModel> stages_;
  std::vector<Ledger> ledgers_;  // of the smallest programs
  std::deque<Footprints> footprints_;
};

}  // namespace

std::string HostCapacity::beyond(std::size_t budget_bytes) const {
  if (budget_bytes <= bytes) return "";
  return fmt::format(" (no more than {} can be used here, {}: {})", format_size(bytes), reason,
                     remedy);
}

void refuse_step(const StepModel& model, const PlacementRequest& request,
                 const TierBudgets& budgets) {
  if (request.is_trial) throw OutOfMemory("the step does not fit", "");
  if (!request.explains_refusal) {
    Footprints footprints;
    const Ledger ledger = HomeChoice(model, request, budgets, footprints).smallest_plan().ledger;
    throw OutOfMemory("the step does not fit: " + describe_shortfall(ledger), "");
  }
  Refusal(model, request, budgets).raise();
}

}  // namespace terrace
