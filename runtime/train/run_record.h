#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/log.h"
#include "runtime/config/train_options.h"

// What a run's config.toml tells of it when it is over.
namespace terrace {

// What the run of a checkpoint was told. None where nothing readable is beside the checkpoint; a
// file that cannot be read is told to `log`.
std::optional<TrainOptions> options_of_run(const std::string& checkpoint, Log& log);

// Whether the run's ids are the bytes of a text: it was text or JSON lines, and the run had no
// tokenizer. Its data is looked at, but not read; where the data is gone, its format and names
// decide.
bool trained_on_bytes(const TrainOptions& run, std::int64_t vocabulary);

// The tokenizer of the run's ids, as choose_tokenizer() takes it: the path that was named; else
// "bytes"; else "auto", the model directory's own.
std::string tokenizer_of_ids(const TrainOptions& run, bool is_bytes);

}  // namespace terrace
