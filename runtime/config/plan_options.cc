#include "runtime/config/plan_options.h"

#include <fmt/format.h>

#include <array>

#include "base/error.h"
#include "runtime/config/train_config.h"
#include "runtime/config/train_flags.h"

namespace terrace {
namespace {

enum : std::size_t {
  kProfile,
  kNodes,
  kRanksPerNode,
  kTokens,
  kPrice,
  kCarbon,
  kPowerCap,
  kSweep,
  kCsv,
  kWhatHelps,
  kAuto
};

constexpr CommandSpec kPlanCommand = {
    "terrace plan",
    "Says what a training would need on a machine, how long a step would take there, and what "
    "would\n"
    "limit it, without running it: the step is compiled for every rank and simulated. Takes the "
    "flags\n"
    "of terrace train; data may be left out. docs/plan.md says what the predictions are worth."};

constexpr auto kPlanFlags = std::to_array<FlagSpec>({
    {"profile", "Machine", "NAME or FILE",
     "The machine: one of those in docs/plan.md, or a file of terrace profile (this machine, as "
     "terrace profile measured it last)"},
    {"nodes", "Machine", "N", "The number of such machines (1)"},
    {"ranks-per-node", "Machine", "N",
     "Ranks of one machine (one for each of its devices; without devices --local-ranks)"},
    {"tokens", "Whole run", "N", "Tokens of the run (those of --max-steps)"},
    {"price-per-node-hour", "Whole run", "X",
     "The cost of one machine for an hour, in any currency"},
    {"grams-per-kwh", "Whole run", "X", "Carbon dioxide for a kilowatt-hour of electricity"},
    {"power-cap", "Machine", "WATTS",
     "The most power that one machine may take: products become slower, as docs/plan.md says "
     "(none)"},
    {"sweep", "Comparisons", "FLAG=V1,V2,...",
     "Plan with each of these values of a flag; with several, every combination of their values",
     FlagArity::kRepeated},
    {"csv", "Comparisons", "", "Print the plans of --sweep as CSV", FlagArity::kSwitch},
    {"what-helps", "Comparisons", "",
     "Say which changes of the machine, and of the settings, would make a step faster",
     FlagArity::kSwitch},
    {"auto", "Comparisons", "FILE",
     "Search the fastest settings that fit, with the same global batch, and write them to FILE for "
     "terrace train --config; settings that are given stay as they are"},
});

}  // namespace

void check_plan_modes(const PlanOptions& plan, bool sweeps) {
  const std::string one = sweeps ? "--sweep" : !plan.auto_file.empty() ? "--auto" : "";
  const std::string other = sweeps && !plan.auto_file.empty() ? "--auto"
                            : plan.what_helps                 ? "--what-helps"
                            : !plan.train.run.explain.empty() ? "--explain"
                                                              : "";
  if (!one.empty() && !other.empty()) {
    throw ConfigError(fmt::format("{} and {} cannot be combined", one, other),
                      "give one of them at a time");
  }
  if (!plan.auto_file.empty() && plan.train.step.zero_partition != ZeroPartition::kAll) {
    throw ConfigError(
        fmt::format("--auto with --zero-partition {}: the search compares only settings without "
                    "islands",
                    name_of(plan.train.step.zero_partition)),
        "leave one of them out; terrace plan without --auto takes islands");
  }
  if (plan.csv && !sweeps)
    throw ConfigError("--csv without --sweep", "leave it out, or use --json");
  if (plan.csv && plan.json)
    throw ConfigError("--csv and --json are two forms", "give one of them");
}

PlanOptions parse_plan_options(const std::vector<std::string>& arguments) {
  PlanOptions plan;
  TrainFlagReading reading = read_train_flags(kPlanCommand, kPlanFlags, arguments);
  const auto& own = reading.own;
  plan.train = std::move(reading.options);
  if (own[kProfile]) plan.machine = own[kProfile]->name();
  if (own[kNodes]) plan.nodes = static_cast<std::int32_t>(own[kNodes]->integer(1, 65536));
  if (own[kRanksPerNode]) {
    plan.ranks_per_node = static_cast<std::int32_t>(own[kRanksPerNode]->integer(1, 4096));
  }
  if (own[kTokens]) plan.tokens = own[kTokens]->positive_number();
  if (own[kPrice]) plan.price_per_node_hour = own[kPrice]->positive_number();
  if (own[kCarbon]) plan.grams_per_kwh = own[kCarbon]->positive_number();
  if (own[kPowerCap]) plan.power_cap = own[kPowerCap]->positive_number();
  plan.json = plan.train.run.json;
  if (own[kCsv]) plan.csv = own[kCsv]->on_off();
  if (own[kWhatHelps]) plan.what_helps = own[kWhatHelps]->on_off();
  if (own[kAuto]) plan.auto_file = own[kAuto]->name();
  plan.given = std::move(reading.given);
  return plan;
}

std::vector<std::string_view> plan_flag_names() {
  std::vector<std::string_view> names;
  for (const FlagSpec& flag : kPlanFlags) names.push_back(flag.name);
  for (const TrainFlag& flag : train_flags()) names.push_back(flag.spec.name);
  return names;
}

std::string plan_help() { return train_flags_help(kPlanCommand, kPlanFlags); }

}  // namespace terrace
