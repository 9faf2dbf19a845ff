#pragma once

#include <string>
#include <vector>

#include "base/log.h"
#include "runtime/train/train_console.h"

namespace terrace {

struct AdapterMerge {
  std::string base;       // a model directory with weights
  std::string adapter;    // a directory as PEFT saves it
  std::string directory;  // where the model goes; made, or there and empty
  std::vector<std::string> ignored_config_keys = {};  // of the base's config.json
};

// Writes the model that computes what `base` does with the adapter: W + s B A in fp32, rounded once
// to the type in which W is stored. Files, other tensors and their bytes are those of the base, as
// are config.json and the files that belong to a model (docs/checkpoint.md). Tensors pass through
// memory in pieces; of an adapter, what belongs to one tensor is in memory. config.json is written
// last. An error leaves nothing behind. A process that is killed leaves a file that says so, and
// the next merge into that directory tells of it. Throws ConfigError for what is no base or adapter
// of it, for a directory that has files, and for a value that its type does not hold; CorruptData,
// IoError.
void merge_adapter(const AdapterMerge& request, TrainConsole& console, Log& log);

}  // namespace terrace
