#include "runtime/report/plan_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <tuple>

#include "runtime/report/number_text.h"

namespace terrace::report {
namespace {

using nlohmann::ordered_json;

std::string text_member(const ordered_json& object, const char* key) {
  return object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : "";
}

double number_member(const ordered_json& object, const char* key) {
  return object.contains(key) && object[key].is_number() ? object[key].get<double>() : 0;
}

bool true_member(const ordered_json& object, const char* key) {
  return object.contains(key) && object[key].is_boolean() && object[key].get<bool>();
}

std::vector<ordered_json> object_members(const ordered_json& object, const char* key) {
  std::vector<ordered_json> objects;
  if (!object.is_object() || !object.contains(key) || !object[key].is_array()) return objects;
  for (const ordered_json& one : object[key]) {
    if (one.is_object()) objects.push_back(one);
  }
  return objects;
}

std::optional<std::int64_t> number_of_block(std::string_view name) {
  constexpr std::string_view kBlock = "block ";
  if (!name.starts_with(kBlock)) return std::nullopt;
  std::int64_t number = 0;
  const char* const begin = name.data() + kBlock.size();
  const char* const end = name.data() + name.size();
  const auto read = std::from_chars(begin, end, number);
  if (read.ec != std::errc() || read.ptr != end) return std::nullopt;
  return number;
}

// Rows that differ only in their unit, in the order in which the first of each came.
template <class Key>
class UnitRows {
 public:
  std::vector<std::string>& units_of(const Key& key) {
    const auto found = places_.find(key);
    if (found != places_.end()) return rows_[found->second].second;
    places_[key] = rows_.size();
    rows_.emplace_back(key, std::vector<std::string>());
    return rows_.back().second;
  }
  const std::vector<std::pair<Key, std::vector<std::string>>>& rows() const { return rows_; }

 private:
  std::map<Key, std::size_t> places_;
  std::vector<std::pair<Key, std::vector<std::string>>> rows_;
};

std::string tier_sentence(const ordered_json& tier) {
  const std::string name = text_member(tier, "name");
  const auto gave_way = static_cast<std::int64_t>(number_member(tier, "gave_way"));
  const auto could = static_cast<std::int64_t>(number_member(tier, "could_give_way"));
  const double budget = number_member(tier, "budget_bytes");
  std::string text = budget > 0
                         ? fmt::format("For the {}'s budget of {}, ", name, bytes_text(budget))
                         : fmt::format("The {} has no budget: ", name);
  text += gave_way == 0
              ? fmt::format("none of the {} that can give way had to.", counted(could, "state"))
              : fmt::format("{} of the {} that can give way had to.", gave_way,
                            counted(could, "state"));
  const double needed = number_member(tier, "bytes_with_one_less");
  if (gave_way > 0 && needed > 0) {
    text +=
        fmt::format(" If one less gave way, the step would need at least {}.", bytes_text(needed));
  }
  return text;
}

// `for_tier` is the tier whose budget a state gave way for.
std::string words_of_cause(const std::string& cause, const std::string& for_tier) {
  if (cause == "asked") return "you named this tier";
  if (cause == "room") return "it is used here, and there is room";
  if (cause == "gave_way") return fmt::format("it gave way for the budget of the {}", for_tier);
  if (cause == "made_room") return "it left the device to make room for streamed updates";
  if (cause == "kept") return "its update comes too soon for the way to a drive and back";
  if (cause == "first") return "recomputation comes before anything gives way";
  return cause;
}

using StateKey = std::tuple<std::string, std::string, double, std::string>;

void add_states(const ordered_json& unit, UnitRows<StateKey>& rows) {
  const std::string name = text_member(unit, "name");
  for (const ordered_json& state : object_members(unit, "states")) {
    const std::string reason =
        words_of_cause(text_member(state, "cause"), text_member(state, "for_tier"));
    rows.units_of({text_member(state, "state"), text_member(state, "home"),
                   number_member(state, "bytes"), reason})
        .push_back(name);
  }
  if (!true_member(unit, "recomputed")) return;
  const std::string cause = text_member(unit, "recompute_cause");
  const std::string reason = cause == "asked"
                                 ? "you asked for recomputation"
                                 : words_of_cause(cause, text_member(unit, "recompute_for_tier"));
  rows.units_of({"activations", "recomputed in the backward", 0, reason}).push_back(name);
}

std::string words_of_place(const std::string& where) {
  if (where == "streamed") return "on the device, through which its state passes";
  if (where == "device") return "on the device, where the optimizer state is";
  return where == "host" ? "on the host" : where;
}

std::string words_of_time(const std::string& when) {
  if (when == "after_norm") return "in the next step's forward, because clipping needs the norm";
  if (when == "deferred") return "in the next step's forward, where the simulator finds it best";
  if (when == "at_once") return "in the backward, as soon as the gradient is there";
  return when;
}

std::string words_of_limit(const ordered_json& load) {
  const std::string limit = text_member(load, "limit");
  if (limit == "stays") return "no load: the bytes stay in memory since the use before";
  if (limit == "lookahead") return "the lookahead allows no earlier load";
  if (limit == "source") return "the source is not ready earlier";
  if (limit == "step_start") return "the step begins there";
  if (limit == "room") {
    return fmt::format("the {} lacks {} for an earlier load", text_member(load, "tier"),
                       bytes_text(number_member(load, "lacking_bytes")));
  }
  return limit;
}

using LoadKey = std::tuple<std::string, std::string, std::string>;

void add_loads(const ordered_json& unit, UnitRows<LoadKey>& rows) {
  for (const ordered_json& load : object_members(unit, "loads")) {
    const auto ahead = static_cast<std::int64_t>(number_member(load, "units_ahead"));
    const bool stays = text_member(load, "limit") == "stays";
    std::string what = text_member(load, "of");
    std::ranges::replace(what, '_', ' ');
    if (true_member(load, "for_update")) what += " for the update";
    rows.units_of(
            {fmt::format("{} x {}", static_cast<std::int64_t>(number_member(load, "count")), what),
             stays ? std::string("not at all") : counted(ahead, "unit") + " ahead",
             words_of_limit(load)})
        .push_back(text_member(unit, "name"));
  }
}

}  // namespace

std::string joined_units(const std::vector<std::string>& names) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < names.size();) {
    const std::optional<std::int64_t> first = number_of_block(names[i]);
    std::size_t end = i + 1;
    while (first && end < names.size() &&
           number_of_block(names[end]) == *first + static_cast<std::int64_t>(end - i)) {
      ++end;
    }
    parts.push_back(end - i == 1 ? names[i]
                                 : fmt::format("blocks {} to {}", *first,
                                               *first + static_cast<std::int64_t>(end - i) - 1));
    i = end;
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

PlanWords plan_words(const std::string& reasons_json) {
  PlanWords words;
  const ordered_json reasons = ordered_json::parse(reasons_json, nullptr, false);
  UnitRows<StateKey> states;
  UnitRows<std::pair<std::string, std::string>> updates;
  UnitRows<LoadKey> loads;
  for (const ordered_json& tier : object_members(reasons, "tiers")) {
    words.tiers.push_back(tier_sentence(tier));
  }
  for (const ordered_json& unit : object_members(reasons, "units")) {
    add_states(unit, states);
    add_loads(unit, loads);
    for (const ordered_json& update : object_members(unit, "updates")) {
      updates
          .units_of({words_of_place(text_member(update, "where")),
                     words_of_time(text_member(update, "when"))})
          .push_back(text_member(unit, "name"));
    }
  }
  for (const auto& [key, units] : states.rows()) {
    const auto& [state, home, bytes, reason] = key;
    words.states.push_back({state, joined_units(units), home, bytes, reason});
  }
  std::ranges::stable_sort(words.states, {}, &StateWords::state);
  for (const auto& [key, units] : updates.rows()) {
    words.updates.push_back({joined_units(units), key.first, key.second});
  }
  for (const auto& [key, units] : loads.rows()) {
    const auto& [what, issued, limit] = key;
    words.loads.push_back({joined_units(units), what, issued, limit});
  }
  return words;
}

}  // namespace terrace::report
