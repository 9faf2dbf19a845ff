#pragma once

#include <vector>

#include "base/log.h"
#include "runtime/checkpoint/hf_companions.h"
#include "runtime/config/train_options.h"

namespace terrace {

// The files that go beside the weights of a run: those of its model directory, and the tokenizer
// where --tokenizer named another, with the files beside it that name its special tokens. Without a
// tokenizer where the ids are bytes. A file that cannot be read is told to `log` and left out.
std::vector<HfCompanion> companions_of_run(const TrainOptions& options, bool is_bytes, Log& log);

}  // namespace terrace
