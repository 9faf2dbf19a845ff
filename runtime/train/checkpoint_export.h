#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/log.h"
#include "runtime/config/train_options.h"
#include "runtime/train/train_console.h"

namespace terrace {

struct CheckpointExport {
  std::string checkpoint;  // a checkpoint-N directory
  std::string directory;   // where the model goes; made, or there and empty
  // The type of the weights. kAuto: as the final/ of the checkpoint's run would have them.
  SaveType dtype = SaveType::kAuto;
  // Empty: the 5 GB of HfExportOptions. Refused for an adapter, which is one file.
  std::optional<std::uint64_t> max_shard_bytes;
  // The model directory whose tokenizer, licence and other files are copied. Empty: the one that
  // the checkpoint's run started from, as the config.toml beside the checkpoint says.
  std::string model_directory;
};

// Writes the weights of a checkpoint as a Hugging Face directory, or, for a run that trained an
// adapter, as a PEFT directory. It writes tensor by tensor, so that memory holds a few pieces and
// never the whole model. Parameters that do not train come from where the checkpoint says they are.
// The directory is made as DIR.writing, and gets its name when everything is written and synced.
// Throws ConfigError where the path is not a checkpoint, where the directory has files or
// DIR.writing exists, for a shard size with an adapter, and for a value that the type does not
// hold; CorruptData, IoError, NotFinite, EnvironmentError.
void export_checkpoint(const CheckpointExport& request, TrainConsole& console, Log& log);

}  // namespace terrace
