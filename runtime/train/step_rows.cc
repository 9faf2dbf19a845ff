#include "runtime/train/step_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "runtime/train/periodic_saves.h"
#include "runtime/train/run_directory.h"
#include "runtime/train/train_report.h"

namespace terrace {
namespace {

double seconds_since_1970() {
  const std::chrono::duration<double> time = std::chrono::system_clock::now().time_since_epoch();
  return time.count();
}

}  // namespace

StepRows::StepRows(const Run& run, TrainConsole& console)
    : run_(run), console_(console), started_ns_(clock_.now_ns()), energy_(run.energy) {}

void StepRows::open_file(const std::string& run_dir, std::int64_t kept_step, const Ledger& ledger) {
  file_.emplace(run_dir, kept_step, ledger);
  run_dir_ = run_dir;
  if (run_.energy.empty()) return;
  console_.say(run_.energy);
  record("energy", energy_.json());
}

void StepRows::sync() {
  if (file_) file_->sync();
}

void StepRows::add(StepMetrics metrics) {
  const MovedBytes& deferred = metrics.totals.moved_by_deferred;
  metrics.totals.moved -= deferred;
  if (row_.has_value()) row_->totals.moved += deferred;
  flush(metrics.totals.first_compute_ns);
  row_ = metrics;
}

void StepRows::add_drained(const RunTotals& drained) {
  RunTotals& totals = row_->totals;
  totals.moved += drained.moved;
  totals.host_joules += drained.host_joules;
  totals.device_joules += drained.device_joules;
  for (std::size_t l = 0; l < kLaneCount; ++l) totals.busy_s[l] += drained.busy_s[l];
}

void StepRows::set_validation(const std::vector<ValidationLoss>& losses) {
  row_->validation = losses;
}

void StepRows::add_to_last_row(const std::vector<ValidationLoss>& losses) {
  if (file_) file_->add_to_last_row(losses);
}

void StepRows::flush_of_failed_run(std::int64_t until_ns, Log& log) {
  try {
    flush(until_ns);
  } catch (const Error& problem) {
    log.warning(problem.what());
  }
}

void StepRows::flush(std::int64_t until_ns) {
  if (!row_.has_value()) return;
  row_->step_s = static_cast<double>(until_ns - row_->totals.first_compute_ns) * 1e-9;
  row_->time_s = seconds_since_1970();
  if (run_.token_s_at_stated_speed > 0 && row_->step_s > 0) {
    row_->flops_utilisation =
        run_.token_s_at_stated_speed * static_cast<double>(row_->tokens) / row_->step_s;
  }
  if (file_) file_->write(*row_);
  summary_.add(*row_);
  energy_.add(row_->totals, row_->step_s, row_->tokens);
  last_loss_ = {row_->step, row_->loss};
  losses_.add(row_->loss);
  if (!first_loss_.has_value()) first_loss_ = last_loss_;
  if (!row_->validation.empty()) last_validation_ = row_->validation;
  say(*row_);
  first_steps_.add(row_->step_s, static_cast<std::size_t>(row_->totals.process_peak_bytes));
  row_.reset();
  if (first_steps_.is_full()) tell_first_steps();
}

void StepRows::tell_first_steps() {
  std::optional<MeasuredStep> measured = first_steps_.measured();
  if (!file_ || !measured || std::exchange(has_told_first_steps_, true)) return;
  const PlannedStep& planned = run_.planned;
  if (planned.device_bytes_taken) measured->device_bytes = planned.device_bytes_taken();
  console_.say(describe_measured(planned, *measured));
  try {
    write_measured(run_dir_, to_json(planned, *measured));
  } catch (const IoError& problem) {  // a reader of run.json is not worth failing the run
    console_.say(fmt::format("run.json does not contain these figures: {}", problem.what()));
  }
}

void StepRows::record_waits_and_energy(const StepWaits& waits) {
  record("waits", summary_.waits_json(waits));
  if (!run_.energy.empty()) record("energy", energy_.json());
}

void StepRows::record(const std::string& key, const std::string& json) {
  if (!file_ || json.empty()) return;
  try {
    write_fact(run_dir_, key, json);
  } catch (const IoError& problem) {
    console_.say(fmt::format("run.json does not contain the {}: {}", key, problem.what()));
  }
}

std::string StepRows::summary(const StepWaits& waits) const {
  const std::string energy = energy_.text();
  return summary_.text(waits, run_.ranks) + (energy.empty() ? "" : "\n" + energy);
}

std::string StepRows::ending(const std::string& best, bool has_final) const {
  if (run_dir_.empty() || !first_loss_.has_value()) return "";
  const auto& [first, loss] = *first_loss_;
  std::string text = best.empty() ? "" : "\n" + best;
  if (const std::string bars = losses_.text(); !bars.empty() && has_utf8_locale()) {
    text += "\nloss curve: " + bars;
  }
  text += fmt::format("\nloss: {:.4f} in step {}", loss, first);
  if (last_loss_.first != first) {
    text += fmt::format(", {:.4f} in step {}", last_loss_.second, last_loss_.first);
  }
  for (const ValidationLoss& validation : last_validation_) {
    text += fmt::format(", {} {:.4f}", validation_loss_key(validation.set), validation.loss);
  }
  if (has_final) text += "\nto try the model: " + run_.trial;
  return text + fmt::format("\ncurves: {}, or tensorboard --logdir {}",
                            in_shell((std::filesystem::path(run_dir_) / "metrics.jsonl").string()),
                            in_shell(run_dir_));
}

std::optional<std::int64_t> StepRows::save_interval() const {
  const double elapsed_s = static_cast<double>(clock_.now_ns() - started_ns_) * 1e-9;
  return choose_save_interval(first_steps_, elapsed_s, run_.largest_step);
}

void StepRows::say(const StepMetrics& row) {
  const std::int64_t step = row.step;
  const double per_step = static_cast<double>(clock_.now_ns() - started_ns_) * 1e-9 /
                          static_cast<double>(step - run_.done_steps);
  const bool is_logged = step % std::max<std::int64_t>(1, run_.log_every) == 0 ||
                         step == run_.last_step || !row.validation.empty();
  console_.step(
      {.line = is_logged ? describe_step(row, run_.total_steps) : "",
       .step = step,
       .last_step = run_.last_step,
       .seconds_left = per_step * static_cast<double>(run_.last_step - step),
       .loss = row.loss,
       .tokens_per_s = row.step_s > 0 ? static_cast<double>(row.tokens) / row.step_s : 0});
}

}  // namespace terrace
