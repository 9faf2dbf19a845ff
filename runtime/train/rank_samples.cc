#include "runtime/train/rank_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>

#include "base/error.h"

namespace terrace {

namespace {

std::size_t elements_of(const BatchShape& batch) {
  return static_cast<std::size_t>(batch.lists() * batch.rows());
}

// Returns a list of micro-batch `m` in the tokens of several micro-batches; empty if the batch has
// no such list.
std::span<std::int32_t> list_of(const BatchShape& batch, std::vector<std::int32_t>& tokens,
                                std::int64_t m, RowNumbers which) {
  const std::int64_t place = batch.place_of(which);
  if (place < 0) return {};
  const std::int64_t first = (m * batch.lists() + place) * batch.rows();
  return std::span(tokens).subspan(static_cast<std::size_t>(first),
                                   static_cast<std::size_t>(batch.rows()));
}

// Returns the lists of a micro-batch that the data fills.
SampleRows rows_of(const BatchShape& batch, std::vector<std::int32_t>& tokens, std::int64_t m,
                   std::span<std::int32_t> lengths = {}) {
  const auto list = [&](RowNumbers which) { return list_of(batch, tokens, m, which); };
  return {.tokens = list(RowNumbers::kTokens),
          .targets = list(RowNumbers::kTargets),
          .positions = list(RowNumbers::kPositions),
          .first_keys = list(RowNumbers::kFirstKeys),
          .lengths = lengths};
}

// Numbers the samples of a micro-batch, which begins with `sample`, in the list of its rows.
void number_samples(const BatchShape& batch, std::int64_t sample, std::span<std::int32_t> list) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const auto length = static_cast<std::size_t>(batch.positions);
  for (std::size_t row = 0; row < list.size(); ++row) {
    const std::int64_t number = sample + static_cast<std::int64_t>(row / length);
    list[row] = static_cast<std::int32_t>(number & kMost);
  }
}

}  // namespace

std::size_t RankSamples::step_elements() const {
  return elements_of(share_.batch) * static_cast<std::size_t>(share_.micro_batches);
}

void RankSamples::fill_angles(std::vector<std::int32_t>& tokens, std::int64_t m) {
  const BatchShape& batch = share_.batch;
  if (batch.row_angles == 0) return;
  const auto first =
      static_cast<std::size_t>((m * batch.lists() + batch.number_lists()) * batch.rows());
  const auto count = static_cast<std::size_t>(batch.row_angles * batch.rows());
  angles_.fill(lengths_, std::as_writable_bytes(std::span(tokens).subspan(first, count)));
}

void RankSamples::fetch(std::int64_t first_sample, const StepPart& part) {
  if (fetched_sample_ == first_sample && fetched_.count == part.count) return;
  if (fetched_.count != part.count) tokens_.assign(step_elements(), 0);
  fetched_ = part;
  fetched_sample_ = -1;
  counted_targets_ = 0;
  std::int64_t sample = first_sample + part.begin * share_.batch.sequences;
  try {
    for (std::int64_t m = 0; m < part.count; ++m) {
      const SampleRows rows = rows_of(share_.batch, tokens_, m, lengths_);
      data_.fill_micro_batch(sample, rows);
      fill_angles(tokens_, m);
      number_samples(share_.batch, sample, list_of(share_.batch, tokens_, m, RowNumbers::kSamples));
      counted_targets_ += std::ranges::count_if(rows.targets, [](auto t) { return t >= 0; });
      if (m == 0) first_counted_targets_ = counted_targets_;
      sample += share_.batch.sequences;
    }
    fetched_sample_ = first_sample;
  } catch (const Error&) {
    problem_ = std::current_exception();
  }
}

std::int64_t RankSamples::target_tokens(const RankGroup& ranks) const {
  if (!data_.has_uncounted()) {
    return fetched_.of_all_ranks * share_.batch.rows();
  }
  const std::int64_t own = ranks.steps().has_losses() ? counted_targets_ : 0;
  return static_cast<std::int64_t>(ranks.sum(static_cast<double>(own)));
}

std::int64_t RankSamples::fill_evaluated_sample(std::size_t set, std::int64_t sample,
                                                const SampleRows& rows) const {
  const std::int64_t samples = data_.validation_samples(set);
  const std::int64_t evaluated = evaluated_.at(set);
  const std::int64_t chosen = sample < evaluated ? sample * samples / evaluated : samples;
  return data_.fill_validation_batch(chosen, rows, set);
}

std::int64_t RankSamples::fill_evaluated(std::size_t set, std::int64_t first,
                                         const SampleRows& rows) const {
  const auto length = static_cast<std::size_t>(share_.batch.positions);
  std::int64_t counted = 0;
  for (std::int64_t row = 0; row < share_.batch.sequences; ++row) {
    const std::size_t begin = static_cast<std::size_t>(row) * length;
    counted += fill_evaluated_sample(set, first + row, rows.part(begin, length));
  }
  return counted;
}

void RankSamples::check_evaluated() const {
  // Reads one sample at a time: a dry run may have micro-batches that this machine has no memory
  // for.
  BatchShape sample = share_.batch;
  sample.sequences = 1;
  sample.row_angles = 0;  // no loss is computed
  std::vector<std::int32_t> tokens(elements_of(sample));
  const SampleRows rows = rows_of(sample, tokens, 0);
  for (std::size_t set = 0; set < data_.validation_sets(); ++set) {
    const std::int64_t count = evaluated_.at(set);
    std::int64_t counted = 0;
    for (std::int64_t i = 0; i < count && counted == 0; ++i) {
      counted = fill_evaluated_sample(set, i, rows);
    }
    if (count == 0 || counted > 0) continue;
    const std::string& name = data_.validation_name(set);
    throw ConfigError(
        fmt::format("--eval-samples {}: none of the samples that it takes of the validation data{} "
                    "has a token to evaluate on, because of masks or prompts",
                    count, name.empty() ? "" : " " + name),
        "give a larger --eval-samples (0: all samples), or --loss-on all");
  }
}

void RankSamples::fill_validation(std::size_t set, std::int64_t first_sample, Validation& batch) {
  batch.tokens.resize(step_elements());
  batch.counted_targets = 0;
  std::int64_t sample =
      first_sample + share_.equal_part(share_.micro_batches).begin * share_.batch.sequences;
  try {
    for (std::int64_t m = 0; m < share_.micro_batches; ++m) {
      batch.counted_targets +=
          fill_evaluated(set, sample, rows_of(share_.batch, batch.tokens, m, lengths_));
      fill_angles(batch.tokens, m);
      std::ranges::fill(list_of(share_.batch, batch.tokens, m, RowNumbers::kSamples), -1);
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

void RankSamples::end_for_problem(const RankGroup& ranks) const {
  const bool is_bad = ranks.any(has_problem());
  rethrow_problem();
  if (is_bad) ranks.wait_for_all();
}

}  // namespace terrace
