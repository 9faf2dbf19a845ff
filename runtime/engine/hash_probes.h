#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "parallel/mesh.h"
#include "runtime/engine/op_bytes.h"
#include "runtime/engine/optimizer_options.h"
#include "runtime/engine/step_hashes.h"
#include "runtime/step/step_model.h"

namespace terrace {

// A value that an op of a program reads or writes, whose hash is recorded.
struct HashProbe {
  enum class Form : std::uint8_t {
    kBytes,
    kLowHalves,  // of fp32 numbers: the part that 16-bit parameters lack
    kLoss,       // of the step's result
    kNorm,
  };

  std::size_t key = 0;  // in HashTable::keys
  Form form = Form::kBytes;
  std::span<const std::byte> bytes = {};
};

// The values of one op: those that it reads, and those that it writes.
struct OpProbes {
  std::vector<HashProbe> before;
  std::vector<HashProbe> after;
};

// A training whose values are hashed. Borrows all but the place.
struct HashedTraining {
  OpBytes bytes;
  const StepModel& model;
  const OptimizerOptions& optimizer;
  MeshPosition place;
};

// Finds the values of a program's ops that other plans of the same training have too, and gives
// each its key. Ops that only move bytes have none: what they do wrong shows in the op that reads
// the bytes. The bytes of a probe are values alone. Padding that nobody sets is left out.
class HashProbes {
 public:
  // The name of the values that backwards read, and pass on.
  static constexpr const char* kHiddenGradients = "gradient of hidden states";

  explicit HashProbes(const HashedTraining& training);

  const HashTable& table() const { return table_; }
  const OpProbes& of(std::size_t op) const { return ops_.at(op); }

 private:
  // Identifies a buffer that several steps of a pass may write.
  using Written = std::tuple<OpKind, std::int32_t, std::int32_t, std::int32_t, Role, std::int32_t>;
  struct Part {
    std::size_t offset = 0;
    std::size_t size_bytes = 0;
  };

  static Written written_by(const Op& op, const Access& access);
  void describe_model();
  void note_writers();
  void add_op(const Op& op);
  void add_unit_op(const Op& op);
  void add_unit_read(const Op& op, const Access& read, std::int32_t index);
  void add_unit_write(const Op& op, const Access& write);
  void add_gradient(const Op& op, const Access& write);
  void add_saved(const Op& op, const Access& access, bool is_output);
  void add_accumulate(const Op& op);
  void add_round(const Op& op);
  void add_reduce(const Op& op);
  void add_encode(const Op& op);
  void add_own_sum(const Op& op, std::size_t element_bytes);
  void add_sum_over_ranks(const Op& op);
  void add_norm_partials(const Op& op);
  void add_norm(const Op& op);
  void add_update(const Op& op);
  void add_state(const Op& op, bool is_output, std::int64_t first, std::int64_t count);
  // Returns this rank's part of a chunk of a value that ranks share or have whole.
  Part own_part(const Op& op, const Access& access, std::size_t element_bytes) const;
  HashKey key_of(const Op& op) const;
  HashProbe& add(const HashKey& key, const Access& access, Part part);
  HashProbe& add(const HashKey& key, std::span<const std::byte> bytes);

  const HashedTraining training_;
  const Program& program_;
  const StepModel& model_;
  HashTable table_;
  std::vector<OpProbes> ops_;
  std::size_t now_ = 0;  // the op that probes are added to
  // By group and chunk: how often a step adds the gradient over ranks.
  std::map<std::pair<std::int32_t, std::int32_t>, int> reduces_;
  std::map<Written, std::size_t> last_writer_;  // the op
};

}  // namespace terrace
