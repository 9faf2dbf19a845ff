#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <utility>
#include <vector>

#include "runtime/data/dataset.h"
#include "runtime/model/batch_shape.h"
#include "runtime/model/rope_rows.h"
#include "runtime/train/rank_group.h"

namespace terrace {

// The micro-batches of a step that a data-parallel rank has. They follow each other in the step.
struct StepPart {
  std::int64_t begin = 0;
  std::int64_t count = 1;
  std::int64_t of_all_ranks = 1;
};

// The part of the samples of steps and evaluations that a data-parallel rank has.
struct SampleShare {
  BatchShape batch;                // a micro-batch of the rank
  std::int64_t micro_batches = 1;  // of an evaluation; a step has no more on any rank
  std::int64_t data_rank = 0;
  std::int64_t data_ranks = 1;
  // The model's rotary embeddings, for BatchShape::row_angles.
  std::vector<RopeOptions> ropes = {};

  // Returns the samples of a micro-batch on all data-parallel ranks.
  std::int64_t of_micro_batches() const { return batch.sequences * data_ranks; }
  std::int64_t of_evaluation() const { return of_micro_batches() * micro_batches; }
  // Returns the rank's part of a step, or evaluation, in which all ranks have `count`
  // micro-batches.
  StepPart equal_part(std::int64_t count) const {
    return {data_rank * count, count, data_ranks * count};
  }
};

// The tokens that one rank trains and evaluates on. A read error does not end a step in the middle:
// it is remembered, so that the training so far can be saved first. Used by one thread.
class RankSamples {
 public:
  // Borrows the data. `evaluated`: how many samples of each validation set an evaluation covers,
  // spread evenly over the set.
  RankSamples(const Dataset& data, const SampleShare& share, std::vector<std::int64_t> evaluated)
      : data_(data),
        share_(share),
        evaluated_(std::move(evaluated)),
        angles_(share_.ropes, rotary_width_of(share_)),
        lengths_(share_.batch.row_angles > 0 ? static_cast<std::size_t>(share_.batch.rows()) : 0) {}

  const SampleShare& share() const { return share_; }
  const Dataset& data() const { return data_; }
  std::int64_t evaluated(std::size_t set) const { return evaluated_.at(set); }
  const std::vector<std::int64_t>& evaluated() const { return evaluated_; }
  // Throws ConfigError where the evaluated samples of a set have no counted target: their loss
  // would be 0 / 0. Reads each set up to the first sample that has one.
  void check_evaluated() const;

  // Reads the rank's part of the step whose first sample, of all ranks, is `first_sample`, unless
  // it is there already. The tokens of micro-batches that the rank does not have are 0.
  void fetch(std::int64_t first_sample, const StepPart& part);
  // Returns the fetched tokens, in the form of StepBatch::tokens; valid until the next fetch().
  std::span<const std::int32_t> tokens() const { return tokens_; }
  // Returns the number of counted targets in the step that was fetched, over all ranks. All ranks
  // call it.
  std::int64_t target_tokens(const RankGroup& ranks) const;

  // Returns the number of counted targets in the step's small batch, as StepBatch has it.
  std::int64_t small_batch_tokens() const {
    return share_.data_ranks > 1 ? counted_targets_ : first_counted_targets_;
  }

  // A rank's part of an evaluation's samples of a set from `first_sample` on, in the form that
  // evaluate() takes.
  struct Validation {
    std::vector<std::int32_t> tokens;
    std::int64_t counted_targets = 0;  // 0 where they cannot be read
  };
  void fill_validation(std::size_t set, std::int64_t first_sample, Validation& batch);

  // Returns the size of tokens() and of Validation::tokens.
  std::size_t step_elements() const;

  bool has_problem() const { return problem_ != nullptr; }
  // Throws the problem, if there is one.
  void rethrow_problem() const;
  // Does not return where a rank has a problem: that rank throws, and its abort brings the reason
  // to the other ranks, which wait for all. A restart would end in the same way. All ranks call it.
  void end_for_problem(const RankGroup& ranks) const;

 private:
  static std::int64_t rotary_width_of(const SampleShare& share) {
    const auto ropes = static_cast<std::int64_t>(share.ropes.size());
    return ropes == 0 ? 0 : share.batch.row_angles / ropes;
  }
  // Writes the angles of micro-batch `m`, whose documents have lengths_, if angles are asked for.
  void fill_angles(std::vector<std::int32_t>& tokens, std::int64_t m);
  // Fills one sequence with sample number `sample` of the evaluation of a set. After the last
  // sample, fills it with targets that are not counted. Returns how many targets are counted.
  std::int64_t fill_evaluated_sample(std::size_t set, std::int64_t sample,
                                     const SampleRows& rows) const;
  // Does the same for one micro-batch with the samples from `first` on.
  std::int64_t fill_evaluated(std::size_t set, std::int64_t first, const SampleRows& rows) const;

  const Dataset& data_;
  SampleShare share_;
  std::vector<std::int64_t> evaluated_;
  std::vector<std::int32_t> tokens_;
  std::int64_t counted_targets_ = 0;
  std::int64_t first_counted_targets_ = 0;  // of the first micro-batch
  std::int64_t fetched_sample_ = -1;        // the first of the step that tokens_ are of
  StepPart fetched_ = {0, 0, 0};
  std::exception_ptr problem_;
  RopeRows angles_;
  std::vector<std::int32_t> lengths_;  // SampleRows::lengths of a micro-batch; empty: no angles
};

}  // namespace terrace
