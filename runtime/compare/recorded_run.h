#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/compare/hash_file.h"

namespace terrace {

// The content of a run directory that two runs are compared by.
struct RecordedRun {
  // The columns of a row of metrics.jsonl that are results of the training, as text.
  using Results = std::map<std::string, std::string>;

  std::string path;
  std::map<std::string, std::string> options;  // config.toml: keys and values, as text
  std::map<std::string, std::string> facts;    // of run.json: "version", "cpu", "data"
  std::map<std::int64_t, Results> rows;        // by step
  std::map<int, RecordedHashes> hashes;        // by rank; empty where none were recorded
  std::vector<std::string> notes;              // what is torn or missing: one sentence each
};

// Reads a run directory. Throws ConfigError where the path is none, IoError, and CorruptData where
// a file in it is of another kind. A torn end of a file is left out and noted.
RecordedRun read_recorded_run(const std::string& path);

}  // namespace terrace
