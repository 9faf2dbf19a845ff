#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/compare/recorded_run.h"

// Finds the first op of the first step in which two runs have computed something else, by the
// hashes that they have recorded.
namespace terrace {

// An op with a value that differs between two runs.
struct OpDifference {
  enum class Cause : std::uint8_t {
    kInput,     // the step's input differs
    kComputes,  // all that it has read is equal, and something that it has written differs
    kFollows,   // it has read a value that an op before it has written differently
    kMoved,     // it has read other bytes, and no op before it has written them differently
    kStart,     // the runs have begun with other parameters or optimizer state
  };

  HashKey op;  // one of its values
  Cause cause = Cause::kFollows;
  // The values that both runs have, by name.
  std::vector<HashKey> differing_reads;
  std::vector<HashKey> equal_reads;
  std::vector<HashKey> differing_writes;
  std::vector<HashKey> equal_writes;
};

struct HashComparison {
  std::string obstacle;  // why the values cannot be compared; empty where they are
  std::string end;       // the same, of the steps after the last one that is compared
  HashedModel model;
  // The steps that are compared: those that both runs have recorded, up to one that differs.
  std::int64_t first_step = 0;
  std::int64_t last_step = 0;
  std::int64_t steps = 0;
  std::int64_t values = 0;    // compared, over all steps up to the one that differs
  std::int64_t only_one = 0;  // values that only one of the runs has, in the step compared last
  // The first step that differs, and the ops of it that differ, in the order of the computation.
  std::optional<std::int64_t> step;
  std::vector<OpDifference> ops;
};

// Compares the hashes of two runs that have recorded some.
HashComparison compare_hashes(const RecordedRun& a, const RecordedRun& b);

// Returns the number of the key's micro-batch, counted over all data-parallel ranks.
std::int32_t global_micro_batch(const HashKey& key, const HashedModel& model);
// Returns the op in words: "forward of block 3, micro-batch 0".
std::string describe_op(const HashKey& key, const HashedModel& model);
// Returns the value in words: "parameters of block 3".
std::string describe_value(const HashKey& key, const HashedModel& model);

}  // namespace terrace
