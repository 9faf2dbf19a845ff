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

// Writes the model that computes what `base` computes with the adapter: W + s B A in fp32, rounded
// once to the type in which W is stored. Tensors of whole modules are the adapter's, in the base's
// type. The result has the same weight files as the base; all other tensors keep their bytes.
// config.json and the other files that belong to a model (docs/checkpoint.md) are the base's too.
// Tensors pass through memory in pieces; of the adapter, only the part that belongs to one tensor
// is in memory at a time. config.json is written last. An error leaves nothing behind. A process
// that is killed leaves a file that says so, and the next merge into that directory reports it.
// Throws ConfigError where the base or the adapter is not one or the two do not belong together,
// for a directory that has files, and for a value that its type does not hold; CorruptData,
// IoError.
void merge_adapter(const AdapterMerge& request, TrainConsole& console, Log& log);

}  // namespace terrace
