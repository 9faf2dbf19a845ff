#pragma once

#include <map>
#include <string>
#include <vector>

namespace terrace::report {

// The options of a run by key, each value as TOML writes it. Options that are not set are absent.
using ConfigValues = std::map<std::string, std::string>;

// Reads the text of a config.toml. A text that is not TOML gives no values and a sentence in
// `remarks`.
ConfigValues read_config_values(const std::string& text, std::vector<std::string>& remarks);

// An option on which runs differ, with the value of each run in their order.
struct DifferingOption {
  std::string key;
  std::vector<std::string> values;  // "not set" where a run lacks it
};

// Returns the options that do not have the same value in all runs. The run directory is left out:
// it always differs.
std::vector<DifferingOption> differing_options(const std::vector<ConfigValues>& runs);

}  // namespace terrace::report
