#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Hashes of the values that the steps of a training read and write. A value has a key that does not
// depend on where the value lies or when it is computed, so runs with different plans can be
// compared. docs/diff.md describes their use.
namespace terrace {

// The kind of op that has read or written a value.
enum class HashedOp : std::uint8_t {
  kInput,         // the lists of numbers of a micro-batch
  kForward,       // of a unit
  kRecompute,     // of a unit
  kBackward,      // of a unit, and the sum of its gradients over micro-batches
  kRound,         // of a finished sum, to the type of gradients
  kReduce,        // the sum of a gradient over data-parallel ranks
  kAccumulate,    // the sum over micro-batches of gradients that were reduced one by one
  kNormPartials,  // sums of squares of a gradient
  kNorm,          // loss, norm, and the scalars of the updates
  kUpdate,        // of a chunk of parameters
};
inline constexpr std::size_t kHashedOps = 10;
std::string_view name_of(HashedOp op);

// Identifies a value of a step.
struct HashKey {
  HashedOp op = HashedOp::kInput;
  std::int32_t unit = -1;
  std::int32_t group = -1;        // of parameters, whose state or gradient the value is
  std::int32_t micro_batch = -1;  // of the data-parallel rank; -1: all, or none
  std::int32_t use = 0;           // as Op::use
  std::int32_t pass_step = 0;     // as Op::step
  std::int32_t chunk = -1;        // of the group
  std::int32_t data_rank = 0;     // that computes the value, or whose part of a chunk it is
  std::int32_t tensor_rank = 0;
  bool is_output = false;   // else the op has read it
  std::string value;        // its name: "hidden states"
  std::int32_t number = 0;  // where the op has several values of that name

  // Returns whether both are values of one op.
  bool is_of_same_op(const HashKey& other) const;
  friend auto operator<=>(const HashKey&, const HashKey&) = default;
};

// The facts that have to be equal in two runs whose values are compared.
struct HashedModel {
  std::int32_t data_ranks = 1;
  std::int32_t tensor_ranks = 1;
  bool shares_rows = false;  // sequence parallelism
  std::int32_t micro_batches = 1;
  std::uint64_t tokens_bytes = 0;  // of a micro-batch
  std::uint64_t hidden_bytes = 0;
  std::int64_t chunk_elements = 0;
  std::string compute_type;
  std::string gradient_type;
  std::vector<std::string> units;            // what each unit is: "embedding", "block 0"
  std::vector<std::int64_t> group_elements;  // of each group
  std::vector<std::int32_t> group_units;     // whose parameters each group is

  friend bool operator==(const HashedModel&, const HashedModel&) = default;
};

// The keys of one rank's hashes, in the order in which it lists them.
struct HashTable {
  HashedModel model;
  std::vector<HashKey> keys;
  std::int32_t ranks = 1;  // of the run
  double bytes = 0;        // that are hashed in a step
};

// A hash that was not recorded, because the op has not run.
inline constexpr std::uint64_t kNoHash = 0;

// Takes the hashes of a rank's steps. Called by the thread that uses the TierRuntime.
class HashSink {
 public:
  virtual ~HashSink() = default;
  // Is told the keys once, before the first step.
  virtual void describe(const HashTable& table) = 0;
  // Takes the hashes of a step whose updates are complete, one for each key; kNoHash for a value
  // that was not recorded. Steps come in order. May throw IoError.
  virtual void add(std::int64_t step, std::span<const std::uint64_t> hashes) = 0;
};

}  // namespace terrace
