#include "runtime/config/plan_sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "base/error.h"
#include "base/nearest_name.h"
#include "runtime/config/plan_options.h"

namespace terrace {
namespace {

constexpr std::string_view kSweepFlag = "--sweep";

// The flags that say what is printed: all plans of a sweep are printed in one way.
constexpr auto kOfOutput = std::to_array<std::string_view>(
    {"sweep", "csv", "json", "what-helps", "auto", "explain", "dry-run", "help"});

std::vector<std::string> values_in(const std::string& text, const std::string& flag) {
  std::vector<std::string> values;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    values.push_back(text.substr(begin, end - begin));
    if (values.back().empty()) {
      throw ConfigError(fmt::format("{} {}: a value is empty", kSweepFlag, flag),
                        fmt::format("write {} {}=V1,V2", kSweepFlag, flag));
    }
    begin = end + 1;
  }
  return values;
}

SweptFlag parse_swept(const std::string& text) {
  const std::size_t dashes = std::min(text.find_first_not_of('-'), text.size());
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals <= dashes) {
    throw ConfigError(fmt::format("{} {}: there are no values", kSweepFlag, text),
                      fmt::format("write {} FLAG=V1,V2", kSweepFlag));
  }
  SweptFlag flag;
  flag.name = text.substr(dashes, equals - dashes);
  std::ranges::replace(flag.name, '_', '-');
  const std::vector<std::string_view> names = plan_flag_names();
  if (std::ranges::count(names, flag.name) == 0) {
    throw ConfigError(fmt::format("{}: {} is no flag of terrace plan", kSweepFlag, flag.name),
                      fmt::format("did you mean {}?", nearest_name(flag.name, names)));
  }
  if (std::ranges::count(kOfOutput, flag.name) != 0) {
    throw ConfigError(fmt::format("{}: {} changes no plan", kSweepFlag, flag.name),
                      "give it once, outside of the sweep");
  }
  flag.values = values_in(text.substr(equals + 1), flag.name);
  return flag;
}

// Refuses a flag that is swept twice, or given outside of the sweep as well.
void check_once(const PlanSweep& sweep) {
  for (const SweptFlag& flag : sweep.flags) {
    const auto is_flag = [&](const std::string& argument) {
      return argument == "--" + flag.name || argument.starts_with("--" + flag.name + "=");
    };
    const auto times = std::ranges::count(sweep.flags, flag.name, &SweptFlag::name);
    if (times == 1 && std::ranges::none_of(sweep.common, is_flag)) continue;
    throw ConfigError(fmt::format("--{} is swept and given once more", flag.name),
                      fmt::format("name all its values in one {}", kSweepFlag));
  }
}

void check_count(const PlanSweep& sweep) {
  double count = 1;
  for (const SweptFlag& flag : sweep.flags) count *= static_cast<double>(flag.values.size());
  if (count <= static_cast<double>(kSweepMost)) return;
  throw ConfigError(
      fmt::format("{} names {:.0f} combinations, more than {}", kSweepFlag, count, kSweepMost),
      "name fewer values, or sweep one part after the other");
}

}  // namespace

std::size_t PlanSweep::combinations() const {
  std::size_t count = flags.empty() ? 0 : 1;
  for (const SweptFlag& flag : flags) count *= flag.values.size();
  return count;
}

std::vector<std::string> PlanSweep::values_of(std::size_t combination) const {
  std::vector<std::string> values(flags.size());
  for (std::size_t f = flags.size(); f-- > 0;) {
    values[f] = flags[f].values[combination % flags[f].values.size()];
    combination /= flags[f].values.size();
  }
  return values;
}

std::vector<std::string> PlanSweep::arguments_of(std::size_t combination) const {
  std::vector<std::string> arguments = common;
  const std::vector<std::string> values = values_of(combination);
  for (std::size_t f = 0; f < flags.size(); ++f) {
    arguments.push_back(fmt::format("--{}={}", flags[f].name, values[f]));
  }
  return arguments;
}

PlanSweep parse_plan_sweep(const std::vector<std::string>& arguments) {
  PlanSweep sweep;
  const std::string with_value = std::string(kSweepFlag) + "=";
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].starts_with(with_value)) {
      sweep.flags.push_back(parse_swept(arguments[i].substr(with_value.size())));
    } else if (arguments[i] == kSweepFlag && i + 1 < arguments.size()) {
      sweep.flags.push_back(parse_swept(arguments[++i]));
    } else {
      sweep.common.push_back(arguments[i]);
    }
  }
  check_once(sweep);
  check_count(sweep);
  return sweep;
}

}  // namespace terrace
