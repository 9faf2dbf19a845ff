#pragma once

#include <vector>

#include "base/log.h"
#include "runtime/checkpoint/hf_companions.h"
#include "runtime/config/train_options.h"

namespace terrace {

// The kind of weights and ids of a run that is saved.
struct TrainedRun {
  const TrainOptions& options;
  bool is_bytes = false;           // the ids are the bytes of a text
  bool is_adapter = false;         // the weights are an adapter's
  bool has_conversations = false;  // some of the data was rendered with a chat template
};

// Returns the files that go beside the weights of a run: the companion files of its model
// directory; if --tokenizer named another tokenizer, that one with the files beside it that name
// its special tokens; and, as chat_template.jinja, the template that --chat-template named or,
// where the model's tokenizer is left out, the model's template that rendered the run's
// conversations. There is no tokenizer where the ids are bytes. For an adapter, returns only the
// files that are about its ids, so that they can be used without its base. A file that cannot be
// read is reported to `log` and left out.
std::vector<HfCompanion> companions_of_run(const TrainedRun& run, Log& log);

}  // namespace terrace
