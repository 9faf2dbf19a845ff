#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/config/flag_reader.h"

// A DeepSpeed configuration as settings of `terrace train`. Its keys and defaults are those of
// DeepSpeed 0.19 (runtime/config.py, runtime/zero/config.py, runtime/zero/offload_config.py).
namespace terrace {

struct DsConfig {
  // Of flags, in the order of their table; unset for what the file says nothing about.
  std::vector<std::optional<FlagValue>> values;
  // Samples of a step over all data-parallel ranks, where the file says so.
  std::optional<std::int64_t> train_batch_size;
  // What the learning rate falls to, as a share of it: min_learning_rate, once that is known.
  std::optional<double> cos_min_ratio;
  // What of the file has no effect here, and what it leaves to the flags: a sentence each.
  std::vector<std::string> notes;
};

// Reads a file in JSON, which may have comments. Every key is a setting, is in a note, or makes no
// difference at the value that it has. Throws ConfigError for a file that cannot be read or that
// names a key twice, for an unknown key with the nearest one, and for what is not done here.
DsConfig read_ds_config(const std::string& path, std::span<const FlagSpec> flags);

}  // namespace terrace
