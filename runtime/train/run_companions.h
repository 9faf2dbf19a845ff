#pragma once

#include <vector>

#include "base/log.h"
#include "runtime/checkpoint/hf_companions.h"
#include "runtime/config/train_options.h"

namespace terrace {

// What a run has trained, and on which ids.
struct TrainedRun {
  const TrainOptions& options;
  bool is_bytes = false;    // the ids are the bytes of a text
  bool is_adapter = false;  // the weights are an adapter's
};

// The files that go beside the weights of a run: those of its model directory, and the tokenizer
// where --tokenizer named another, with the files beside it that name its special tokens. Without a
// tokenizer where the ids are bytes. Of an adapter only a tokenizer that was named: its base has
// all else. A file that cannot be read is told to `log` and left out.
std::vector<HfCompanion> companions_of_run(const TrainedRun& run, Log& log);

}  // namespace terrace
