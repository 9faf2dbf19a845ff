#pragma once

#include <string>
#include <vector>

#include "base/log.h"

namespace terrace {

// A file that is copied beside the weights as it is.
struct HfCompanion {
  std::string name;  // relative to the directory
  std::string content;
};

enum class CompanionScope {
  kAll,
  // Without the tokenizer, chat templates and generation settings, which are about ids that the
  // result does not have.
  kWithoutTokenizer,
  // The tokenizer, chat templates and generation settings alone.
  kTokenizer,
};

// Reads the files of a model directory that belong to a model of the same ids: licence, README,
// code of its own, tokenizer, chat templates, generation settings (docs/checkpoint.md has the
// names). Returns none where there is no config.json: a preset. A file that cannot be read, or is
// too large to be one of these, is reported to `log` and left out.
std::vector<HfCompanion> read_hf_companions(const std::string& directory, CompanionScope scope,
                                            Log& log);

// Writes them into a directory that is there, over older ones. Throws IoError.
void write_companions(const std::string& directory, const std::vector<HfCompanion>& companions);

}  // namespace terrace
