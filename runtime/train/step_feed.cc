#include "runtime/train/step_feed.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/config/accumulation_schedule.h"
#include "runtime/train/start_doubts.h"

namespace terrace {

StepFeed::StepFeed(const TrainOptions& options, RankSamples& samples, const RankGroup& ranks,
                   Log& log)
    : batch_(options.batch),
      is_measured_(options.ranks.measures_rank_shares),
      samples_(samples),
      ranks_(ranks),
      log_(log),
      divided_(divided_step(options, ranks.data_ranks())),
      planned_shares_(describe_planned_shares(options, divided_)) {
  if (batch_.adapts_accumulation) {
    batch_.accumulation_schedule = {first_phase(batch_, ranks.data_ranks())};
  }
}

void StepFeed::go_on_from(const CheckpointProgress& progress, bool is_own) {
  next_sample_ = progress.samples;
  if (progress.gradient_noise && batch_.measures_gradient_noise) {
    noise_ = progress.gradient_noise->noise;
    if (batch_.adapts_accumulation) take_phases(progress.gradient_noise->phases, batch_);
  }
  if (is_own && is_measured_) divided_.take(progress.rank_micro_batches, ranks_.data_ranks());
}

void StepFeed::divide(ModelRuntime& engine, TrainConsole& console) {
  if (!is_measured_) {
    shares_origin_ = "by --rank-shares";
    return;
  }
  shares_origin_ = divided_.by_rank.empty() ? "measured" : "as before";
  if (divided_.by_rank.empty()) {
    divided_.by_rank = measure_shares(divided_, engine, samples_, ranks_);
  }
  console.say(describe_shares(divided_.by_rank, shares_origin_));
}

std::string StepFeed::shares_json() const {
  if (divided_.by_rank.empty()) return "";
  const nlohmann::ordered_json json = {{"micro_batches", divided_.by_rank},
                                       {"origin", shares_origin_}};
  return json.dump();
}

StepPart StepFeed::part_of(std::int64_t step) const {
  const SampleShare& share = samples_.share();
  const std::int64_t count = micro_batches_of_step(batch_, step);
  const std::vector<std::int64_t>& by_rank = divided_.by_rank;
  if (by_rank.empty()) return share.equal_part(count);
  StepPart part = {.count = by_rank.at(static_cast<std::size_t>(share.data_rank)),
                   .of_all_ranks = count * share.data_ranks};
  for (std::int64_t rank = 0; rank < share.data_rank; ++rank) {
    part.begin += by_rank.at(static_cast<std::size_t>(rank));
  }
  return part;
}

std::int64_t StepFeed::samples_of(std::int64_t step) const {
  return micro_batches_of_step(batch_, step) * samples_.share().of_micro_batches();
}

std::int64_t StepFeed::tokens_of(std::int64_t step) const {
  return samples_of(step) * samples_.share().batch.positions;
}

std::int64_t StepFeed::samples_of_largest() const {
  return batch_.gradient_accumulation_steps * samples_.share().of_micro_batches();
}

double StepFeed::largest_to(std::int64_t step) const {
  return static_cast<double>(samples_of_largest()) / static_cast<double>(samples_of(step));
}

std::int64_t StepFeed::tokens_of_program() const {
  return samples_.share().of_evaluation() * samples_.share().batch.positions;
}

// Measured shares are planned for a rank that has twice the mean, and so are all others.
std::int64_t StepFeed::planned_tokens() const {
  if (is_measured_) return tokens_of_program();
  return samples_of_largest() * samples_.share().batch.positions;
}

bool StepFeed::has_steps_of_the_plan() const {
  return !is_measured_ && !batch_.changes_accumulation();
}

void StepFeed::add_to(CheckpointProgress& progress) const {
  if (is_measured_) progress.rank_micro_batches = divided_.by_rank;
  if (batch_.measures_gradient_noise) progress.gradient_noise = noise_record(noise_, batch_);
}

NoiseFigures StepFeed::observe(std::int64_t step, const StepResult& result) {
  NoiseFigures figures;
  if (!batch_.measures_gradient_noise) return figures;
  figures.of_step = noise_of_step(result, samples_of(step));
  if (figures.of_step) noise_ = after_step(noise_, *figures.of_step);
  figures.scale = gradient_noise_scale(noise_);
  if (!batch_.adapts_accumulation) return figures;
  figures.micro_batches = micro_batches_of_step(batch_, step);
  choose_next_phase(step, noise_, samples_.share().of_micro_batches(), batch_);
  return figures;
}

std::int64_t StepFeed::samples_until(std::int64_t step) const {
  return micro_batches_until(batch_, step) * samples_.share().of_micro_batches();
}

std::int64_t StepFeed::samples_used_by(std::int64_t step, const CheckpointProgress& now) const {
  if (batch_.adapts_accumulation) {
    return now.samples + (step - now.step) * samples_of_largest();
  }
  return now.samples + samples_until(step) - samples_until(now.step);
}

StepBatch StepFeed::take(std::int64_t step, double learning_rate) {
  fetch(step);
  samples_.rethrow_problem();
  next_sample_ += samples_of(step);
  const std::int64_t targets = samples_.target_tokens(ranks_);
  if (targets == 0 && !std::exchange(had_no_targets_, true) && ranks_.is_first()) {
    log_.warning(doubt_of_no_targets(step));
  }
  return {step,
          samples_.tokens(),
          targets,
          learning_rate,
          static_cast<std::int32_t>(part_of(step).count),
          samples_.small_batch_tokens()};
}

}  // namespace terrace
