#pragma once

#include <string>

#include "runtime/data/dataset.h"
#include "runtime/tokenizer/tokenizer.h"

namespace terrace {

// Returns lines about data that has documents or masks, each preceded by a line break; empty for
// other data. The lines say how many documents there are and in how many sequences, how much is
// padding and how much is trained on, and what was dropped, truncated or split. They also show the
// beginning of the first sample that has a target, with the trained tokens apart from the others.
// Reads the samples up to that one, at most a thousand, and throws as TokenSource::read() does.
// `tokenizer` is the tokenizer of data that is text; without one, or if it lacks some ids of the
// sample, ids are shown.
std::string describe_documents(const Dataset& data, const Tokenizer* tokenizer);

// Returns the same numbers as a JSON object, whose keys docs/data.md lists; empty for other data.
std::string documents_json(const Dataset& data);

}  // namespace terrace
