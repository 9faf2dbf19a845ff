#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/step_hashes.h"

// The files of hashes in a run directory: hashes/rank-N.bin, one for each rank. docs/diff.md
// describes the format.
namespace terrace {

// Returns the directory of a run's files of hashes.
std::string hash_directory(const std::string& run_dir);
std::string hash_path(const std::string& run_dir, int rank);
// Returns the paths of a run's files of hashes, by rank; empty if it has none.
std::map<int, std::string> hash_paths(const std::string& run_dir);

// Prepares a run directory for a run that goes on after `last_step`: drops the hashes of later
// steps. If it is 0, the run does not go on from the hashes that it finds: they are moved to
// hashes.before, in place of those that are there. Throws IoError.
void drop_hashes_after(const std::string& run_dir, std::int64_t last_step);

// Appends the hashes of one rank to its file. The file is opened when the first step comes.
class HashFile final : public HashSink {
 public:
  HashFile(std::string run_dir, int rank);

  // Returns a line that says where the hashes go, and what they cost.
  std::string describe_cost() const;

  void describe(const HashTable& table) override;
  void add(std::int64_t step, std::span<const std::uint64_t> hashes) override;

 private:
  void write_block(std::string_view tag, std::string_view payload);
  void open();

  const std::string run_dir_;
  const std::string path_;
  std::string table_;  // until it is written
  std::size_t values_ = 0;
  double hashed_bytes_ = 0;
  std::ofstream stream_;
};

// The content of a file, as far as it is whole.
struct RecordedHashes {
  struct Row {
    std::size_t table = 0;  // in `tables`
    std::vector<std::uint64_t> hashes;
  };

  std::vector<HashTable> tables;     // one each time that the run was started or resumed
  std::map<std::int64_t, Row> rows;  // by step
  std::size_t dropped_bytes = 0;     // a torn end
};

// Reads a file. Throws IoError, and CorruptData for a file that is none of hashes.
RecordedHashes read_hash_file(const std::string& path);

}  // namespace terrace
