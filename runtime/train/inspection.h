#pragma once

#include <string>

#include "runtime/data/data_format.h"

// Tells what a file or directory of this program, or of a model, holds, without changing or loading
// it.
namespace terrace {

// Returns a JSON object that describes what `path` is, whose "kind" is one of
//   run          a run directory: its checkpoints, its last row of metrics, whether it has a result
//   checkpoint   step, optimizer, model, device, sizes, and its tensors
//   model        a Hugging Face directory: the model's shape, its files and tensors
//   adapter      a directory of PEFT's: its base, rank, alpha and tensors
//   safetensors  a file: metadata and tensors
//   trace        a trace.json: tracks, events, the seconds that they span
//   data         token files or text: the format and the number of tokens
// `format` says what data is; raw ids are never guessed. Headers and manifests are read and
// checked, contents are not. Throws ConfigError where the path is nothing of these, CorruptData,
// IoError.
std::string inspect_path(const std::string& path, DataFormat format = DataFormat::kAuto);

}  // namespace terrace
