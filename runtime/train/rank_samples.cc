#include "runtime/train/rank_samples.h"

#include "base/error.h"

namespace terrace {

std::size_t RankSamples::step_elements() const {
  return static_cast<std::size_t>(2 * share_.batch.rows() * share_.micro_batches);
}

std::span<std::int32_t> RankSamples::part(std::vector<std::int32_t>& tokens, std::int64_t m,
                                          bool is_target) const {
  const auto rows = static_cast<std::size_t>(share_.batch.rows());
  const auto index = static_cast<std::size_t>(2 * m) + (is_target ? 1 : 0);
  return std::span(tokens).subspan(index * rows, rows);
}

void RankSamples::fetch(std::int64_t first_sample) {
  if (fetched_sample_ == first_sample) return;
  tokens_.resize(step_elements());
  std::int64_t sample = share_.begin(first_sample);
  try {
    for (std::int64_t m = 0; m < share_.micro_batches; ++m) {
      data_.fill_micro_batch(sample, part(tokens_, m, false), part(tokens_, m, true));
      sample += share_.batch.sequences;
    }
    fetched_sample_ = first_sample;
  } catch (const Error&) {
    problem_ = std::current_exception();
  }
}

std::int64_t RankSamples::fill_evaluated(std::int64_t first, std::span<std::int32_t> tokens,
                                         std::span<std::int32_t> targets) const {
  const std::int64_t windows = data_.validation_windows();
  const auto length = static_cast<std::size_t>(share_.batch.positions);
  std::int64_t counted = 0;
  for (std::int64_t row = 0; row < share_.batch.sequences; ++row) {
    const std::int64_t sample = first + row;
    const std::int64_t window = sample < evaluated_ ? sample * windows / evaluated_ : windows;
    const std::size_t begin = static_cast<std::size_t>(row) * length;
    counted += data_.fill_validation_batch(window, tokens.subspan(begin, length),
                                           targets.subspan(begin, length));
  }
  return counted;
}

void RankSamples::fill_validation(std::int64_t first_sample, Validation& batch) {
  batch.tokens.resize(step_elements());
  batch.counted_targets = 0;
  std::int64_t sample = share_.begin(first_sample);
  try {
    for (std::int64_t m = 0; m < share_.micro_batches; ++m) {
      batch.counted_targets +=
          fill_evaluated(sample, part(batch.tokens, m, false), part(batch.tokens, m, true));
      sample += share_.batch.sequences;
    }
  } catch (const Error&) {
    problem_ = std::current_exception();
    batch.counted_targets = 0;
  }
}

void RankSamples::rethrow_problem() const {
  if (problem_ != nullptr) std::rethrow_exception(problem_);
}

}  // namespace terrace
