#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/log.h"
#include "runtime/config/train_options.h"

// Reads what a run's config.toml says about a run that is over.
namespace terrace {

// Returns the options of the run that wrote a checkpoint. None where there is no readable
// config.toml beside the checkpoint; a file that cannot be read is reported to `log`.
std::optional<TrainOptions> options_of_run(const std::string& checkpoint, Log& log);

// Returns whether the run's ids are the bytes of a text: its data was text or JSON lines, and the
// run had no tokenizer. The data is looked at, but not read; where the data is gone, its format and
// file names decide.
bool trained_on_bytes(const TrainOptions& run, std::int64_t vocabulary);

// Returns the tokenizer of the run's ids, as choose_tokenizer() takes it: the path that was named,
// else "bytes", else "auto" (the model directory's own).
std::string tokenizer_of_ids(const TrainOptions& run, bool is_bytes);

}  // namespace terrace
