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
  // Of the weights. kAuto: as the final/ of the checkpoint's run would have them.
  SaveType dtype = SaveType::kAuto;
  // Empty: the 5 GB of HfExportOptions. An adapter is one file, and refuses it.
  std::optional<std::uint64_t> max_shard_bytes;
  // The model directory whose tokenizer, licence and other files go along. Empty: the one that the
  // checkpoint's run started from, as the config.toml beside the checkpoint tells.
  std::string model_directory;
};

// Writes the weights of a checkpoint as a Hugging Face directory, or, of a run that trained an
// adapter, as PEFT's: tensor by tensor, so that memory
// holds a few pieces and never the model. Parameters that do not train come from where the
// checkpoint says they are. The directory is made as DIR.writing, and gets its name when all is
// written and synced. Throws ConfigError for what is not a checkpoint, for a directory that has
// files or a DIR.writing that is there, for a size of shards of an adapter, and for a value that
// the type does not hold; CorruptData, IoError, NotFinite, EnvironmentError.
void export_checkpoint(const CheckpointExport& request, TrainConsole& console, Log& log);

}  // namespace terrace
