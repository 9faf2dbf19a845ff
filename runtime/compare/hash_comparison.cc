#include "runtime/compare/hash_comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace terrace {
namespace {

constexpr std::int32_t kLast = std::numeric_limits<std::int32_t>::max();

// The place of an op in the order of a step. An op comes after all ops whose results it reads, in
// every plan: units ascend in the forward and descend in the backward.
using Place = std::array<std::int32_t, 7>;

Place place_of(const HashKey& key, const HashedModel& model) {
  const std::int32_t micro_batch = key.micro_batch < 0 ? kLast : global_micro_batch(key, model);
  const auto kind = static_cast<std::int32_t>(key.op);
  switch (key.op) {
    case HashedOp::kInput:
      return {0, micro_batch};
    case HashedOp::kForward:
      return {1, key.unit, micro_batch, key.use, key.pass_step, key.data_rank, key.tensor_rank};
    case HashedOp::kRecompute:
    case HashedOp::kBackward:
      return {2,
              -key.unit,
              micro_batch,
              -key.use,
              kind,
              key.pass_step,
              key.tensor_rank + model.tensor_ranks * key.data_rank};
    case HashedOp::kNorm:
      return {4};
    case HashedOp::kUpdate:
      return {5, key.group, key.chunk, key.data_rank, key.tensor_rank};
    default:
      return {3,    key.group,     key.chunk,      key.micro_batch < 0 ? kLast : key.micro_batch,
              kind, key.data_rank, key.tensor_rank};
  }
}

// A step of a run: the tables of its ranks and their hashes.
struct RecordedStep {
  std::vector<const HashTable*> tables;
  std::vector<const std::vector<std::uint64_t>*> hashes;
};

// Returns the step; without tables where some rank has not recorded it.
RecordedStep step_of(const RecordedRun& run, std::int64_t step) {
  RecordedStep found;
  for (const auto& [rank, recorded] : run.hashes) {
    const auto row = recorded.rows.find(step);
    if (row == recorded.rows.end()) continue;
    found.tables.push_back(&recorded.tables.at(row->second.table));
    found.hashes.push_back(&row->second.hashes);
  }
  const bool is_whole =
      !found.tables.empty() && std::ssize(found.tables) == found.tables.front()->ranks;
  return is_whole ? found : RecordedStep();
}

std::set<std::int64_t> steps_of(const RecordedRun& run) {
  std::set<std::int64_t> steps;
  for (const auto& [step, row] : run.hashes.begin()->second.rows) {  // of the first rank
    if (!step_of(run, step).tables.empty()) steps.insert(step);
  }
  return steps;
}

// Where a value's hash is in a RecordedStep.
struct HashPlace {
  std::size_t rank = 0;
  std::size_t number = 0;
};

// The values that the steps of two runs have in common, in the order of the computation. Made anew
// only where a run has gone on with another table.
class CommonValues {
 public:
  struct Value {
    const HashKey* key = nullptr;
    HashPlace a;
    HashPlace b;
  };

  void set(const RecordedStep& a, const RecordedStep& b) {
    if (a.tables == a_ && b.tables == b_) return;
    a_ = a.tables;
    b_ = b.tables;
    const auto places_a = places(a_);
    const auto places_b = places(b_);
    values_.clear();
    for (const auto& [key, place] : places_a) {
      const auto other = places_b.find(key);
      if (other != places_b.end()) values_.push_back({key, place, other->second});
    }
    only_one_ = places_a.size() + places_b.size() - 2 * values_.size();
    const HashedModel& model = a_.front()->model;
    std::ranges::sort(values_, [&](const Value& x, const Value& y) {
      return std::tuple(place_of(*x.key, model), std::cref(*x.key)) <
             std::tuple(place_of(*y.key, model), std::cref(*y.key));
    });
  }
  const std::vector<Value>& values() const { return values_; }
  std::size_t only_one() const { return only_one_; }

 private:
  struct Less {
    bool operator()(const HashKey* x, const HashKey* y) const { return *x < *y; }
  };
  // Ranks that have computed the same value have the same hash of it: the first one's is taken.
  static std::map<const HashKey*, HashPlace, Less> places(
      const std::vector<const HashTable*>& tables) {
    std::map<const HashKey*, HashPlace, Less> places;
    for (std::size_t rank = 0; rank < tables.size(); ++rank) {
      for (std::size_t k = 0; k < tables[rank]->keys.size(); ++k) {
        places.try_emplace(&tables[rank]->keys[k], HashPlace{rank, k});
      }
    }
    return places;
  }

  std::vector<const HashTable*> a_;
  std::vector<const HashTable*> b_;
  std::vector<Value> values_;
  std::size_t only_one_ = 0;
};

std::uint64_t hash_at(const RecordedStep& step, const HashPlace& place) {
  return step.hashes[place.rank]->at(place.number);
}

// Returns the ops of the step that have a value that differs. Counts the values.
std::vector<OpDifference> differing_ops(const CommonValues& common, const RecordedStep& a,
                                        const RecordedStep& b, std::int64_t& compared) {
  std::vector<OpDifference> found;
  OpDifference now;
  const auto take = [&] {
    const bool differs = !now.differing_reads.empty() || !now.differing_writes.empty();
    if (differs) found.push_back(std::move(now));
    now = {};
  };
  const HashKey* before = nullptr;
  for (const CommonValues::Value& value : common.values()) {
    if (before != nullptr && !before->is_of_same_op(*value.key)) take();
    before = value.key;
    const std::uint64_t of_a = hash_at(a, value.a);
    const std::uint64_t of_b = hash_at(b, value.b);
    if (of_a == kNoHash || of_b == kNoHash) continue;
    ++compared;
    now.op = *value.key;
    auto& reads = of_a == of_b ? now.equal_reads : now.differing_reads;
    auto& writes = of_a == of_b ? now.equal_writes : now.differing_writes;
    (value.key->is_output ? writes : reads).push_back(*value.key);
  }
  take();
  return found;
}

bool is_state(const HashKey& key) {
  constexpr auto kOfStep = std::to_array<std::string_view>({"gradient", "scalars"});
  return key.value == "parameters" ||
         (key.op == HashedOp::kUpdate && std::ranges::find(kOfStep, key.value) == kOfStep.end());
}

// Returns whether the op continues a gradient or a norm, which it does not read as a value of its
// own, from an op before it that has written other bytes.
bool continues_other(const std::vector<OpDifference>& ops, const OpDifference& op) {
  if (op.op.op == HashedOp::kNorm) return &op != ops.data();
  const auto is_sum = [](const HashKey& key) {
    return key.value.starts_with("gradient sum") || key.op == HashedOp::kRound;
  };
  return std::ranges::all_of(op.differing_writes, [&](const HashKey& written) {
    return is_sum(written) && std::any_of(ops.data(), &op, [&](const OpDifference& before) {
             return std::ranges::any_of(before.differing_writes, [&](const HashKey& other) {
               return is_sum(other) && other.group == written.group;
             });
           });
  });
}

// `begins`: the step before this one was not compared, so the state may have differed before.
void set_causes(std::vector<OpDifference>& ops, bool begins) {
  using Cause = OpDifference::Cause;
  for (OpDifference& op : ops) {
    if (op.op.op == HashedOp::kInput) {
      op.cause = Cause::kInput;
    } else if (op.differing_reads.empty()) {
      op.cause = continues_other(ops, op) ? Cause::kFollows : Cause::kComputes;
    } else if (begins && std::ranges::all_of(op.differing_reads, is_state)) {
      op.cause = Cause::kStart;
    } else {
      op.cause = &op == ops.data() ? Cause::kMoved : Cause::kFollows;
    }
  }
}

std::string obstacle_of(const HashedModel& a, const HashedModel& b) {
  const auto differ = [](const char* what, const auto& of_a, const auto& of_b) {
    return fmt::format("{}: {} and {}", what, of_a, of_b);
  };
  if (a.data_ranks != b.data_ranks)
    return differ("other numbers of data-parallel ranks", a.data_ranks, b.data_ranks);
  if (a.tensor_ranks != b.tensor_ranks)
    return differ("other numbers of tensor-parallel ranks", a.tensor_ranks, b.tensor_ranks);
  if (a.shares_rows != b.shares_rows) return "only one of them has sequence parallelism";
  if (a.compute_type != b.compute_type)
    return differ("other compute types", a.compute_type, b.compute_type);
  if (a.gradient_type != b.gradient_type)
    return differ("other types of gradients", a.gradient_type, b.gradient_type);
  if (a.micro_batches != b.micro_batches)
    return differ("other numbers of micro-batches", a.micro_batches, b.micro_batches);
  if (a.tokens_bytes != b.tokens_bytes) return "micro-batches of another size";
  if (a != b) return "models of other sizes";
  return "";
}

}  // namespace

HashComparison compare_hashes(const RecordedRun& a, const RecordedRun& b) {
  HashComparison result;
  const std::set<std::int64_t> of_a = steps_of(a);
  const std::set<std::int64_t> of_b = steps_of(b);
  std::vector<std::int64_t> steps;
  std::ranges::set_intersection(of_a, of_b, std::back_inserter(steps));
  if (steps.empty()) {
    result.obstacle = "they have recorded hashes of no step that both have";
    return result;
  }
  result.first_step = steps.front();
  CommonValues common;
  std::int64_t before = -1;  // the step compared last
  for (const std::int64_t step : steps) {
    const RecordedStep step_a = step_of(a, step);
    const RecordedStep step_b = step_of(b, step);
    result.model = step_a.tables.front()->model;
    const std::string obstacle = obstacle_of(result.model, step_b.tables.front()->model);
    if (!obstacle.empty()) {
      (result.steps == 0 ? result.obstacle : result.end) = obstacle;
      return result;
    }
    common.set(step_a, step_b);
    result.only_one = static_cast<std::int64_t>(common.only_one());
    result.last_step = step;
    ++result.steps;
    result.ops = differing_ops(common, step_a, step_b, result.values);
    if (!result.ops.empty()) {
      result.step = step;
      set_causes(result.ops, before != step - 1);
      return result;
    }
    before = step;
  }
  return result;
}

// --- words --------------------------------------------------------------------------------------

std::int32_t global_micro_batch(const HashKey& key, const HashedModel& model) {
  return key.data_rank * model.micro_batches + key.micro_batch;
}

std::string describe_op(const HashKey& key, const HashedModel& model) {
  const auto unit_of = [&](std::int32_t unit) {
    return unit >= 0 && unit < std::ssize(model.units) ? model.units[unit] : std::string("a unit");
  };
  std::string text;
  const std::int32_t owner = key.group >= 0 && key.group < std::ssize(model.group_units)
                                 ? model.group_units[key.group]
                                 : -1;
  switch (key.op) {
    case HashedOp::kInput:
      return fmt::format("input of micro-batch {}", global_micro_batch(key, model));
    case HashedOp::kForward:
      text = "forward of " + unit_of(key.unit);
      break;
    case HashedOp::kRecompute:
      text = "recomputation of " + unit_of(key.unit);
      break;
    case HashedOp::kBackward:
      text = "backward of " + unit_of(key.unit);
      break;
    case HashedOp::kRound:
      text = "rounding of the gradient of " + unit_of(owner);
      break;
    case HashedOp::kReduce:
      text = "sum over ranks of the gradient of " + unit_of(owner);
      break;
    case HashedOp::kAccumulate:
      text = "sum over micro-batches of the gradient of " + unit_of(owner);
      break;
    case HashedOp::kNormPartials:
      text = "sums of squares of the gradient of " + unit_of(owner);
      break;
    case HashedOp::kNorm:
      return "loss and gradient norm of the step";
    case HashedOp::kUpdate:
      text = "update of " + unit_of(owner);
      break;
  }
  const bool is_of_unit = key.op <= HashedOp::kBackward;
  if (key.micro_batch >= 0) text += fmt::format(", micro-batch {}", global_micro_batch(key, model));
  if (!is_of_unit) text += fmt::format(", chunk {}", key.chunk);
  if (!is_of_unit && model.data_ranks > 1) text += fmt::format(", data rank {}", key.data_rank);
  if (model.tensor_ranks > 1)
    text += fmt::format(", tensor rank {}, step {}", key.tensor_rank, key.pass_step);
  return text;
}

std::string describe_value(const HashKey& key, const HashedModel& model) {
  const bool is_of_unit = HashedOp::kForward <= key.op && key.op <= HashedOp::kBackward;
  const std::string owner =
      key.group >= 0 && key.group < std::ssize(model.group_units)
          ? model.units.at(static_cast<std::size_t>(model.group_units[key.group]))
          : "";
  if (key.value == "parameters" && !owner.empty()) return "parameters of " + owner;
  if (is_of_unit && key.value.starts_with("gradient") && !owner.empty()) {
    const std::string chunk = key.chunk >= 0 ? fmt::format(" (chunk {})", key.chunk) : "";
    return fmt::format("{} of {}{}", key.value, owner, chunk);
  }
  if (is_of_unit && key.micro_batch < 0 && key.value == "gradient of hidden states") {
    return fmt::format("gradient of hidden states of micro-batch {}",
                       key.data_rank * model.micro_batches + key.number);
  }
  return key.value;
}

}  // namespace terrace
