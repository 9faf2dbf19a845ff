#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/config/flag_reader.h"

// Turns a DeepSpeed configuration into settings of `terrace train`. Keys and defaults follow
// DeepSpeed 0.19 (runtime/config.py, runtime/zero/config.py, runtime/zero/offload_config.py).
namespace terrace {

struct DsConfig {
  // The values of the flags, in the order of their table; unset for flags that the file does not
  // set.
  std::vector<std::optional<FlagValue>> values;
  // The samples of a step over all data-parallel ranks, if the file gives the number.
  std::optional<std::int64_t> train_batch_size;
  // The share of the learning rate that it falls to. It gives min_learning_rate once the learning
  // rate is known.
  std::optional<double> cos_min_ratio;
  // Sentences about the keys that have no effect here, and about the settings that the file leaves
  // to the flags.
  std::vector<std::string> notes;
};

// Reads a JSON file, which may have comments. Every key is a setting, is in a note, or makes no
// difference at the value that it has. Throws ConfigError for a file that cannot be read or that
// has a key twice, for an unknown key (naming the nearest one), and for a setting that Terrace does
// not support.
DsConfig read_ds_config(const std::string& path, std::span<const FlagSpec> flags);

}  // namespace terrace
