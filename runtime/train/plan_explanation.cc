#include "runtime/train/plan_explanation.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "runtime/plan/unit_names.h"

namespace terrace {
namespace {

using nlohmann::ordered_json;

// Why a state is where it is.
enum class Cause : std::uint8_t {
  kAsked,     // the user named the tier
  kHasRoom,   // nothing had to give way
  kGaveWay,   // it gave way for the budget of a faster tier
  kMadeRoom,  // it left the device to make room for streamed updates
  kKept,      // a gradient that is not worth the way to a drive and back
};

std::string_view name_of(Cause cause) {
  constexpr std::array<std::string_view, 5> kNames = {"asked", "room", "gave_way", "made_room",
                                                      "kept"};
  return kNames.at(static_cast<std::size_t>(cause));
}

// A concession, with its place among those that the tier's budget needed.
struct GivenWay {
  const TierPressure* tier = nullptr;
  std::size_t place = 0;  // from 1
};

std::optional<GivenWay> last_given_way(const PlanReasons& reasons, StateClass state,
                                       std::int32_t number, bool recomputes) {
  std::optional<GivenWay> last;
  for (const TierPressure& tier : reasons.tiers) {
    for (std::size_t i = 0; i < tier.given_way.size(); ++i) {
      const Concession& one = tier.given_way[i];
      if (one.state != state || one.number != number || one.recomputes != recomputes) continue;
      last = GivenWay{&tier, i + 1};
    }
  }
  return last;
}

// A state of a group or of a unit's activations, its home and the reason.
struct StateReason {
  StateClass state = StateClass::kParameters;
  std::int32_t number = 0;
  Tier home = Tier::kHost;
  std::size_t bytes = 0;  // of a micro-batch for activations
  Cause cause = Cause::kHasRoom;
  std::optional<GivenWay> given_way = {};
};

class Explanation {
 public:
  explicit Explanation(const TierPlan& plan)
      : model_(plan.model),
        policy_(plan.training.policy),
        program_(plan.training.program),
        reasons_(plan.training.reasons) {}

  std::vector<StateReason> states_of(std::int32_t unit) const {
    std::vector<StateReason> states;
    for (const std::int32_t group : model_.units.at(static_cast<std::size_t>(unit)).groups) {
      if (model_.owner(group) != unit) continue;
      for (const StateClassInfo& info : kStateClasses) {
        const bool has_home =
            info.state != StateClass::kActivations && model_.has_home(info.state, group);
        if (has_home) states.push_back(state_of(info.state, group));
      }
    }
    const std::size_t saved = model_.units[static_cast<std::size_t>(unit)].saved_bytes;
    if (saved != 0 && policy_.has_backward && !model_.fuses_passes(unit)) {
      StateReason activations = state_of(StateClass::kActivations, unit);
      activations.bytes = saved;
      states.push_back(activations);
    }
    return states;
  }

  bool is_recomputed(std::int32_t unit) const {
    return policy_.activations.at(static_cast<std::size_t>(unit)).recompute &&
           !model_.units[static_cast<std::size_t>(unit)].recompute.empty();
  }
  std::optional<GivenWay> recompute_given_way(std::int32_t unit) const {
    return last_given_way(reasons_, StateClass::kActivations, unit, true);
  }

  // The loads of a unit's states, as many as are alike together.
  struct Loads {
    LoadNote note;  // with the most bytes that are lacking
    std::int64_t count = 0;
  };
  std::vector<Loads> loads_of(std::int32_t unit) const {
    using Key = std::tuple<Account, bool, LoadLimit, std::int32_t, Tier>;
    std::map<Key, Loads> found;
    for (const LoadNote& note : program_.loads) {
      if (note.unit != unit) continue;
      Loads& loads =
          found[{note.account, note.is_for_update, note.limit, note.visits_ahead, note.tier}];
      const std::size_t most = std::max(loads.note.lacking_bytes, note.lacking_bytes);
      loads.note = note;
      loads.note.lacking_bytes = most;
      loads.count += note.times;
    }
    std::vector<Loads> list;
    for (const auto& [key, loads] : found) list.push_back(loads);
    return list;
  }

  const StepModel& model() const { return model_; }
  // Returns the groups that are the unit's own.
  std::vector<std::int32_t> own_groups(std::int32_t unit) const {
    std::vector<std::int32_t> own = model_.units.at(static_cast<std::size_t>(unit)).groups;
    std::erase_if(own, [&](std::int32_t group) { return model_.owner(group) != unit; });
    return own;
  }
  const StepPolicy& policy() const { return policy_; }
  const PlanReasons& reasons() const { return reasons_; }

 private:
  StateReason state_of(StateClass state, std::int32_t number) const {
    StateReason reason{.state = state, .number = number, .home = policy_.home(state, number)};
    reason.given_way = last_given_way(reasons_, state, number, false);
    const bool made_room =
        state == StateClass::kOptimizer &&
        std::ranges::find(reasons_.made_room, number) != reasons_.made_room.end();
    reason.cause = reasons_.is_asked[state]       ? Cause::kAsked
                   : made_room                    ? Cause::kMadeRoom
                   : reason.given_way.has_value() ? Cause::kGaveWay
                                                  : Cause::kHasRoom;
    if (state == StateClass::kActivations) return reason;
    if (state == StateClass::kGradients && policy_.gradient_home(number) != reason.home) {
      reason.home = policy_.gradient_home(number);
      reason.cause = Cause::kKept;
    }
    // Gradients that are divided away from the compute tier: see Homes::is_sharded().
    const bool is_divided = state == StateClass::kGradients && model_.zero.of_optimizer() &&
                            !model_.zero.of_gradients() && reason.home != policy_.compute_tier();
    for (std::int64_t c = 0; c < model_.home_chunks(state, number); ++c) {
      const std::int64_t elements = is_divided ? model_.shard(number, c, model_.zero.rank).count
                                               : model_.home_part(state, number, c).count;
      reason.bytes += model_.state_bytes(state, number, elements);
    }
    return reason;
  }

  const StepModel& model_;
  const StepPolicy& policy_;
  const Program& program_;
  const PlanReasons& reasons_;
};

std::string budget_text(const TierPressure& tier) {
  return tier.budget_bytes.has_value()
             ? fmt::format("{}'s budget of {}", name_of(tier.tier), format_size(*tier.budget_bytes))
             : fmt::format("{}", name_of(tier.tier));
}

std::string given_way_text(const GivenWay& given) {
  const TierPressure& tier = *given.tier;
  std::string text = fmt::format(
      "gave way for the {}, as number {} of the {} states that had to, of {} that could",
      budget_text(tier), given.place, tier.given_way.size(), tier.possible);
  if (tier.budget_bytes.has_value() && tier.needed_with_one_less > *tier.budget_bytes) {
    text += fmt::format("; if one less gave way, the step would need at least {}",
                        format_size(tier.needed_with_one_less));
  }
  return text;
}

std::string cause_text(const StateReason& state) {
  switch (state.cause) {
    case Cause::kAsked:
      return "as asked";
    case Cause::kHasRoom:
      return "where it is used: there is room";
    case Cause::kGaveWay:
      return given_way_text(*state.given_way);
    case Cause::kMadeRoom:
      return "left the device to make room for updates that are streamed through it";
    case Cause::kKept:
      return "not worth the way to the drive and back: its update comes too soon";
  }
  return "";
}

std::string limit_text(const LoadNote& note) {
  switch (note.limit) {
    case LoadLimit::kStays:
      return "left out: the bytes stay in memory since the use before";
    case LoadLimit::kLookahead:
      return "as early as the lookahead allows";
    case LoadLimit::kSource:
      return "no earlier, because the source is not ready";
    case LoadLimit::kStepStart:
      return "no earlier, because the step begins there";
    case LoadLimit::kRoom:
      return fmt::format("no earlier, because the {} lacks {}", name_of(note.tier),
                         format_size(note.lacking_bytes));
  }
  return "";
}

std::string update_text(const Explanation& plan, std::int32_t group) {
  const StepPolicy& policy = plan.policy();
  const char* const where =
      policy.streams_update(group)                 ? "on the device, through which its state passes"
      : policy.update_tier(group) == Tier::kDevice ? "on the device, where the optimizer state is"
                                                   : "on the host";
  const char* const when = policy.updates_wait_for_norm
                               ? "under the next step's forward, because it waits for the norm"
                           : policy.defers_update(group)
                               ? "under the next step's forward, where the simulator finds it best"
                               : "under the backward, as soon as its gradient is there";
  return fmt::format("runs {}, {}", where, when);
}

// Says it once for neighbouring groups that are updated alike, and names the groups where not all
// of the unit's are.
std::string updates_text(const Explanation& plan, std::int32_t unit) {
  struct Alike {
    std::size_t first = 0, last = 0;  // groups of the unit, from 1
    std::string how;
  };
  std::vector<Alike> all;
  const std::vector<std::int32_t> own = plan.own_groups(unit);
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (!plan.model().group_trains(own[i]) || !plan.policy().has_backward) continue;
    std::string how = update_text(plan, own[i]);
    if (!all.empty() && all.back().how == how) {
      all.back().last = i + 1;
    } else {
      all.push_back({i + 1, i + 1, std::move(how)});
    }
  }
  std::string text;
  for (const Alike& alike : all) {
    text += fmt::format("  update           {}", alike.how);
    if (all.size() > 1) text += fmt::format(" (groups {} to {})", alike.first, alike.last);
    text += '\n';
  }
  return text;
}

// Names the groups where the unit has several of its own.
std::string states_text(const Explanation& plan, std::int32_t unit) {
  std::string text;
  const std::vector<std::int32_t> own = plan.own_groups(unit);
  std::int32_t before = -1;
  for (const StateReason& state : plan.states_of(unit)) {
    const bool is_of_group = own.size() > 1 && state.state != StateClass::kActivations;
    if (is_of_group && std::exchange(before, state.number) != state.number) {
      const auto place = std::ranges::find(own, state.number) - own.begin();
      text += fmt::format("  group {} of {}:\n", place + 1, own.size());
    }
    const bool is_recomputed = state.state == StateClass::kActivations && plan.is_recomputed(unit);
    text += fmt::format("  {:<16} {}, ", info_of(state.state).name, format_size(state.bytes));
    if (!is_recomputed) {
      text += fmt::format("on the {}: {}\n", name_of(state.home), cause_text(state));
      continue;
    }
    const std::optional<GivenWay> given = plan.recompute_given_way(unit);
    text += "recomputed in the backward: ";
    text += plan.reasons().recompute_is_asked ? "as asked"
            : given.has_value()               ? given_way_text(*given)
                                              : "before anything else gives way";
    text += '\n';
  }
  return text;
}

std::string loads_text(const Explanation& plan, std::int32_t unit) {
  std::string text;
  for (const Explanation::Loads& loads : plan.loads_of(unit)) {
    const LoadNote& note = loads.note;
    text += fmt::format("  loads            {} of {}{}: ", loads.count, name_of(note.account),
                        note.is_for_update ? " for the update" : "");
    if (note.limit != LoadLimit::kStays) text += fmt::format("{} units ahead, ", note.visits_ahead);
    text += limit_text(note) + '\n';
  }
  return text;
}

ordered_json pressure_json(const TierPressure& tier) {
  ordered_json json = {{"name", name_of(tier.tier)},
                       {"gave_way", tier.given_way.size()},
                       {"could_give_way", tier.possible}};
  if (tier.budget_bytes.has_value()) json["budget_bytes"] = *tier.budget_bytes;
  if (tier.needed_with_one_less != 0) json["bytes_with_one_less"] = tier.needed_with_one_less;
  return json;
}

ordered_json state_json(const StateReason& state) {
  ordered_json json = {{"state", info_of(state.state).name},
                       {"home", name_of(state.home)},
                       {"bytes", state.bytes},
                       {"cause", name_of(state.cause)}};
  if (state.state != StateClass::kActivations) json["group"] = state.number;
  if (state.cause != Cause::kGaveWay) return json;
  json["for_tier"] = name_of(state.given_way->tier->tier);
  json["place"] = state.given_way->place;
  return json;
}

std::string_view name_of(LoadLimit limit) {
  constexpr std::array<std::string_view, 5> kNames = {"stays", "lookahead", "source", "step_start",
                                                      "room"};
  return kNames.at(static_cast<std::size_t>(limit));
}

// Where and when a group is updated, in words for programs.
ordered_json update_json(const StepPolicy& policy, std::int32_t group) {
  const bool on_device = policy.update_tier(group) == Tier::kDevice;
  return {{"group", group},
          {"where", policy.streams_update(group) ? "streamed"
                    : on_device                  ? "device"
                                                 : "host"},
          {"when", policy.updates_wait_for_norm  ? "after_norm"
                   : policy.defers_update(group) ? "deferred"
                                                 : "at_once"}};
}

ordered_json unit_json(const Explanation& plan, std::int32_t unit) {
  ordered_json states = ordered_json::array();
  for (const StateReason& state : plan.states_of(unit)) {
    const bool is_kept = state.state != StateClass::kActivations || !plan.is_recomputed(unit);
    if (is_kept) states.push_back(state_json(state));
  }
  ordered_json loads = ordered_json::array();
  for (const Explanation::Loads& alike : plan.loads_of(unit)) {
    ordered_json json = {{"of", name_of(alike.note.account)},
                         {"for_update", alike.note.is_for_update},
                         {"count", alike.count},
                         {"units_ahead", alike.note.visits_ahead},
                         {"limit", name_of(alike.note.limit)}};
    if (alike.note.limit == LoadLimit::kRoom) {
      json["tier"] = name_of(alike.note.tier);
      json["lacking_bytes"] = alike.note.lacking_bytes;
    }
    loads.push_back(std::move(json));
  }
  ordered_json json = {{"unit", unit},
                       {"name", name_of_unit(plan.model(), unit)},
                       {"states", states},
                       {"recomputed", plan.is_recomputed(unit)}};
  if (plan.is_recomputed(unit)) {
    const std::optional<GivenWay> given = plan.recompute_given_way(unit);
    const bool is_asked = plan.reasons().recompute_is_asked;
    json["recompute_cause"] = is_asked ? "asked" : given.has_value() ? "gave_way" : "first";
    if (!is_asked && given.has_value()) {
      json["recompute_for_tier"] = name_of(given->tier->tier);
      json["recompute_place"] = given->place;
    }
  }
  json["updates"] = ordered_json::array();
  for (const std::int32_t group : plan.model().units[static_cast<std::size_t>(unit)].groups) {
    const bool is_updated = plan.model().owner(group) == unit && plan.model().group_trains(group) &&
                            plan.policy().has_backward;
    if (is_updated) json["updates"].push_back(update_json(plan.policy(), group));
  }
  json["loads"] = loads;
  return json;
}

}  // namespace

std::string explain_unit(const TierPlan& plan, std::string_view name) {
  const Explanation explanation(plan);
  const StepModel& model = plan.model;
  const std::optional<std::int32_t> unit = find_unit(model, name);
  if (!unit.has_value() || !model.has_unit(*unit)) {
    std::int32_t blocks = 0;
    for (std::int32_t u = 0; u <= model.last_unit(); ++u) {
      blocks += model.fuses_passes(u) || model.joins_micro_batches(u) ? 0 : 1;
    }
    throw ConfigError(
        fmt::format("--explain {}: {}", name,
                    unit.has_value() ? "another pipeline stage has this unit" : "no such unit"),
        fmt::format("give embedding, head, or a block from 0 to {}", blocks - 1));
  }
  std::string text = fmt::format("reasons for {}:\n", name_of_unit(model, *unit));
  if (!plan.training.reasons.is_known) {
    return text + "  only a plan that keeps as little as it can fits beside the evaluation\n";
  }
  text += states_text(explanation, *unit);
  text += updates_text(explanation, *unit);
  return text + loads_text(explanation, *unit);
}

std::string reasons_json(const TierPlan& plan) {
  if (!plan.training.reasons.is_known) return "{}";
  const Explanation explanation(plan);
  ordered_json tiers = ordered_json::array();
  for (const TierPressure& tier : plan.training.reasons.tiers) tiers.push_back(pressure_json(tier));
  ordered_json units = ordered_json::array();
  for (std::int32_t u = 0; u <= plan.model.last_unit(); ++u) {
    if (plan.model.has_unit(u)) units.push_back(unit_json(explanation, u));
  }
  return ordered_json({{"tiers", tiers}, {"units", units}}).dump();
}

}  // namespace terrace
