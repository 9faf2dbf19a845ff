#pragma once

#include <string>

#include "runtime/data/dataset.h"
#include "runtime/tokenizer/tokenizer.h"

namespace terrace {

// Returns lines about data that has documents or masks, each after an end of a line; empty for
// other data: how many documents there are and in how many sequences, how much is padding and how
// much is trained on, what was dropped, truncated or split, and the beginning of the first sample
// that has a target, with what is trained on apart from what is not. Reads the samples up to it, at
// most a thousand, and throws as TokenSource::read() does. The tokenizer is that of the
// data where it is text; without one, or if it has not all ids of the sample, ids are shown.
std::string describe_documents(const Dataset& data, const Tokenizer* tokenizer);

// The same numbers as a JSON object, whose keys docs/data.md has; empty for other data.
std::string documents_json(const Dataset& data);

}  // namespace terrace
