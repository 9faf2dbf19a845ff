#include "runtime/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <exception>
#include <filesystem>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "memory/cuda/cuda_device.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/hf_export.h"
#include "runtime/data/dataset.h"
#include "runtime/step/verify_ranks.h"
#include "runtime/train/local_ranks.h"
#include "runtime/train/rank_group.h"
#include "runtime/train/ranked_state.h"
#include "runtime/train/resume.h"
#include "runtime/train/run_directory.h"
#include "runtime/train/trace_file.h"
#include "runtime/train/train_report.h"
#include "runtime/train/train_setup.h"

namespace terrace {
namespace {

// Whether a run that goes on from no checkpoint starts from the weights beside its config.json.
bool takes_weights(const ModelOptions& options) {
  if (options.init == InitChoice::kRandom) return false;
  if (has_hf_weights(options.model)) return true;
  if (is_checkpoint(options.model)) {
    throw ConfigError(
        fmt::format("--model {} is a checkpoint, whose weights are not read", options.model),
        "go on with it by --resume, give the final directory of its run, or --init random for its "
        "shape alone");
  }
  if (options.init == InitChoice::kWeights) {
    throw ConfigError(fmt::format("--init weights: {} has no weights", options.model),
                      "use --init random, or a directory with safetensors");
  }
  return false;
}

MachineShare machine_share(const TrainOptions& options, const LaunchedRanks& ranks) {
  MachineShare machine;
  machine.limits = read_host_limits();
  machine.topology = read_topology();
  machine.threads =
      plan_threads(options.tiers.threads, machine.limits, machine.topology, ranks.on_host);
  machine.ranks_on_host = ranks.on_host.count;
  machine.gpu = choose_gpu(options.tiers.device, ranks.on_host, ranks.count());
  // Updates then have the processors to themselves.
  if (machine.gpu.has_value()) machine.threads.update = machine.threads.compute;
  return machine;
}

std::string describe_gpu(const MachineShare& machine, const DeviceChoice& device, int ranks) {
  if (!machine.gpu.has_value()) {
    const std::string why = why_gpus_are_idle(device, ranks);
    return why.empty() ? "" : "; " + why;
  }
  return fmt::format("; {}GPU {}: {}", ranks > 1 ? "a GPU for each rank, here " : "",
                     machine.gpu->ordinal, describe_cuda_device(machine.gpu->ordinal));
}

class Trainer {
 public:
  Trainer(const TrainCommand& command, const LaunchedRanks& ranks, StopRequest& stop,
          TrainConsole& console, Log& log)
      : command_(command),
        options_(command.options),
        ranks_(ranks.world, mesh_for(options_, ranks.count())),
        stop_(stop),
        console_(console),
        log_(log),
        model_(load_model_config(options_.model.model)),
        layout_(parameter_layout(model_)),
        machine_(machine_share(options_, ranks)),
        backend_(make_backend(machine_.gpu)),
        engine_options_(engine_options_for(options_, model_, machine_)) {
    engine_options_.backend = backend_.get();
    agree_on_limits();
  }

  TrainOutcome run() {
    plan_ = plan_engine(engine_options_);
    if (ranks_.is_first()) check_stages(engine_options_, plan_);
    if (!ranks_.is_same_in_stages(rank_fingerprint(plan_.training.program))) {
      throw ConfigError("the ranks have compiled different steps",
                        "start all of them with the same flags and the same version of Terrace");
    }
    const std::string summary = describe_plan(engine_options_, plan_);
    console_.say(summary);
    if (options_.run.dry_run) return TrainOutcome::kDone;
    data_ = std::make_unique<Dataset>(
        dataset_options_for(options_, model_, engine_options_.batch.positions));
    agree_on_data();
    data_->check_validation();
    total_steps_ = total_steps_for(options_, *data_, samples_per_step());
    schedule_ = schedule_for(options_, total_steps_);
    take_run_directory();
    std::unique_ptr<Checkpoint> checkpoint = find_checkpoint(options_.run.resume, run_dir_);
    refuse_second_run(options_.run.resume, run_dir_);
    ranks_.add_devices(exchange_of(backend_.get()), communicator_options_for(options_.ranks));
    engine_options_.ranks = ranks_.steps();
    engine_ = std::make_unique<Engine>(engine_options_, plan_, log_);
    state_.emplace(engine_->state(), plan_.model, ranks_.world());
    console_.say(to_text(machine_.threads) +
                 describe_gpu(machine_, options_.tiers.device, plan_.model.ranks()) +
                 describe_store(engine_->store_paths(),
                                lane_bytes(plan_.training.program, Lane::kWrite),
                                plan_.model.ranks()));
    start_from(std::move(checkpoint));
    waits_.emplace(plan_.training.program);
    const Ledger largest = largest_ledger();
    if (ranks_.is_first()) open_files(summary, largest);
    const TrainOutcome outcome = train_and_tell_cause();
    if (trace_) trace_->finish();
    console_.say(summary_.text(*waits_));
    return outcome;
  }

 private:
  // Of this rank, and of all.
  std::int64_t samples_of_rank() const {
    return options_.batch.micro_batch_size * options_.batch.gradient_accumulation_steps;
  }
  std::int64_t samples_per_step() const { return samples_of_rank() * ranks_.data_ranks(); }

  const char* device_name() const { return machine_.gpu.has_value() ? "cuda" : "cpu"; }

  // Ranks with other limits would compile other programs.
  void agree_on_limits() {
    engine_options_.ranks = ranks_.steps();
    engine_options_.zero_stage = zero_stage_for(options_, ranks_.steps().shape);
    for (int* const threads : {&engine_options_.threads, &engine_options_.update_threads}) {
      *threads = static_cast<int>(ranks_.smallest(*threads));
    }
    if (std::optional<GpuSetting>& gpu = engine_options_.placement.gpu; gpu.has_value()) {
      const auto link = static_cast<std::int64_t>(gpu->link_bytes_per_s);
      gpu->link_bytes_per_s = static_cast<double>(ranks_.smallest(link));
    }
    for (std::optional<std::size_t>& budget : engine_options_.budgets) {
      if (!budget.has_value()) continue;
      budget = static_cast<std::size_t>(ranks_.smallest(static_cast<std::int64_t>(*budget)));
    }
  }

  // Ranks read it themselves, and may see other files. With as many tokens these count as the same.
  void agree_on_data() const {
    const auto same = [&](std::int64_t tokens) {
      return ranks_.is_same(static_cast<std::uint64_t>(tokens));
    };
    const bool same_training = same(data_->training_tokens());
    const bool same_validation = same(data_->validation_tokens());
    if (same_training && same_validation) return;
    throw ConfigError(fmt::format("the ranks have found different data: here {} training and {} "
                                  "validation tokens",
                                  data_->training_tokens(), data_->validation_tokens()),
                      "give --data and --validation-data with the same content to all of them");
  }

  // The first rank owns it.
  void take_run_directory() {
    if (ranks_.is_first()) {
      run_dir_ = make_run_directory(options_);
      lock_ = std::make_unique<RunDirectoryLock>(run_dir_);
      recover_run_directory(run_dir_);
    }
    run_dir_ = ranks_.text_of_first(run_dir_);
  }

  // Each tier's peak is that of the rank with the largest.
  Ledger largest_ledger() const {
    Ledger ledger = plan_.ledger;
    for (TierLedger& tier : ledger.tiers) {
      tier.peak_bytes =
          static_cast<std::size_t>(ranks_.largest(static_cast<std::int64_t>(tier.peak_bytes)));
    }
    return ledger;
  }

  void open_files(const std::string& summary, const Ledger& largest) {
    write_run_files(run_dir_, command_, summary);
    metrics_ = std::make_unique<MetricsFile>(run_dir_, done_steps_, largest);
    const std::optional<StepRange>& traced = options_.run.trace_steps;
    if (traced && traced->last > done_steps_) {  // else those steps' trace is there already
      trace_.emplace(run_dir_, plan_.training.program, *traced);
    }
  }

  // Ranks look for the checkpoint themselves, and may see other directories.
  void agree_on(const Checkpoint* checkpoint) const {
    const bool same_step = ranks_.is_same(
        static_cast<std::uint64_t>(checkpoint == nullptr ? -1 : checkpoint->progress().step));
    const bool same_content = ranks_.is_same(checkpoint == nullptr ? 0 : checkpoint->fingerprint());
    if (same_step && same_content) return;
    throw ConfigError("the ranks have found different checkpoints to resume from",
                      "give --run-dir and --resume on a file system that all of them see");
  }

  // Sets the state, and where the run is. Until all ranks have read and verified their parts, no
  // file is changed: one of them may find damage that the others do not see.
  void start_from(std::unique_ptr<Checkpoint> checkpoint) {
    agree_on(checkpoint.get());
    if (checkpoint != nullptr) {
      check_resume(*checkpoint, {model_, options_.model.seed, engine_options_.batch.positions,
                                 data_->training_tokens(), last_step()});
      try {
        checkpoint->open(layout_);
        engine_->fill_state(*checkpoint);
      } catch (const CorruptData& damage) {
        throw naming_earlier_checkpoint(damage, options_.run.resume, run_dir_);
      }
      ranks_.wait_for_all();
      done_steps_ = checkpoint->progress().step;
      next_sample_ = checkpoint->progress().samples;
      if (const auto& scale = checkpoint->progress().loss_scale) engine_->set_loss_scale(*scale);
      if (resumes_in_place(options_.run.resume, run_dir_)) {
        saved_step_ = done_steps_;
        if (ranks_.is_first()) remove_later_checkpoints(run_dir_, done_steps_);
      }
      console_.say(describe_resume(checkpoint->progress(), device_name()));
      return;
    }
    if (takes_weights(options_.model)) {
      const HfDirectory directory(options_.model.model, model_, layout_, log_);
      engine_->fill_state(WeightState(directory));
      console_.say(fmt::format("starts from the weights in {}", options_.model.model));
    } else {
      engine_->fill_state(RandomState(options_.model.seed));
      console_.say(fmt::format("starts from random weights, --seed {}", options_.model.seed));
    }
  }

  // --- steps -------------------------------------------------------------------------------------

  std::int64_t last_step() const {
    return std::min(total_steps_, options_.batch.stop_after_step.value_or(total_steps_));
  }

  static bool is_due(std::int64_t every, std::int64_t step) {
    return every > 0 && step % every == 0;
  }

  // Whether the updates of this step must be complete before the next one begins.
  bool is_boundary(std::int64_t step) const {
    return step == last_step() || stops_ || is_due(options_.run.checkpoint_every, step) ||
           (has_validation() && is_due(options_.run.eval_every, step));
  }

  bool has_validation() const { return data_->validation_windows() > 0; }

  // A failed op ends the calls of all ranks, this one's too, which may be in one between steps.
  TrainOutcome train_and_tell_cause() {
    try {
      return train_steps();
    } catch (const CommError&) {
      engine_->rethrow_failure();
      throw;
    }
  }

  TrainOutcome train_steps() {
    started_ns_ = clock_.now_ns();
    first_step_ = done_steps_ + 1;
    stop_.is_heard = true;
    while (done_steps_ < last_step()) {
      train_to_boundary();
      if (stops_ && done_steps_ < last_step()) {
        save();
        end_for_bad_data();
        return TrainOutcome::kSavedOnSignal;
      }
    }
    if (done_steps_ < total_steps_) {
      save();
      end_for_bad_data();
      return TrainOutcome::kStoppedAsAsked;
    }
    try {
      export_weights();
    } catch (const IoError& problem) {  // what was learned is not lost for want of room or rights
      if (!ranks_.is_first() || reads_state_) throw;  // no checkpoint can be made of it either
      log_.warning(fmt::format("{}; what was learned is saved as a checkpoint", problem.what()));
      save();
      throw;
    }
    end_for_bad_data();
    return TrainOutcome::kDone;
  }

  // Does not return where a rank cannot read what it has to train on: it throws, and its abort
  // brings the reason to the others, which wait for all. Run again they would end as they do now.
  void end_for_bad_data() {
    const bool has_bad_data = ranks_.any(data_problem_ != nullptr);
    if (data_problem_ != nullptr) std::rethrow_exception(data_problem_);
    if (has_bad_data) ranks_.wait_for_all();
  }

  // Runs steps, each begun before the one before is finished, up to one that must be complete.
  void train_to_boundary() {
    begin_step(done_steps_ + 1);
    for (;;) {
      const std::int64_t step = done_steps_ + 1;
      if (step < last_step()) fetch_samples(step + 1);
      stops_ = ranks_.any(stop_.is_made || data_problem_ != nullptr);
      const bool boundary = is_boundary(step);
      if (!boundary) begin_step(step + 1);
      finish_step(step);
      if (!boundary) continue;
      complete_boundary();
      return;
    }
  }

  std::int64_t tokens_per_step() const {
    return samples_per_step() * engine_options_.batch.positions;
  }

  // What `step` trains on, if it is not there. If it cannot be read the steps before are saved
  // first.
  void fetch_samples(std::int64_t step) {
    if (fetched_step_ == step) return;
    try {
      fill_samples();
      fetched_step_ = step;
    } catch (const Error&) {
      data_problem_ = std::current_exception();
    }
  }

  // The samples from next_sample_ on.
  void fill_samples() {
    const std::int64_t rows = engine_options_.batch.rows();
    const std::int64_t micro_batches = options_.batch.gradient_accumulation_steps;
    tokens_.resize(static_cast<std::size_t>(2 * rows * micro_batches));
    const std::span<std::int32_t> all(tokens_);
    const auto size = static_cast<std::size_t>(rows);
    std::int64_t sample = next_sample_ + ranks_.data_rank() * samples_of_rank();
    for (std::int64_t m = 0; m < micro_batches; ++m) {
      const auto at = static_cast<std::size_t>(m) * 2 * size;
      data_->fill_micro_batch(sample, all.subspan(at, size), all.subspan(at + size, size));
      sample += options_.batch.micro_batch_size;
    }
  }

  void begin_step(std::int64_t step) {
    fetch_samples(step);
    if (data_problem_ != nullptr) std::rethrow_exception(data_problem_);
    next_sample_ += samples_per_step();
    engine_->begin_step({step, tokens_, tokens_per_step(), learning_rate_at(schedule_, step)});
  }

  // Rows are written when the next step has started, as their time ends there.
  void finish_step(std::int64_t step) {
    StepOutcome outcome;
    RunTotals totals;
    try {
      outcome = engine_->finish_step();
      totals = *outcome.report;
      ranks_.combine(totals);
    } catch (...) {  // the row of the step before is complete but for its time
      try {
        flush_row(clock_.now_ns());
      } catch (const Error& problem) {  // what ends the run is the step's
        log_.warning(problem.what());
      }
      throw;
    }
    observe(*outcome.report);
    StepMetrics metrics;
    metrics.step = step;
    metrics.loss = outcome.result.loss;
    metrics.gradient_norm = outcome.result.gradient_norm;
    metrics.loss_scale = outcome.result.loss_scale;
    metrics.was_skipped = outcome.result.was_skipped;
    metrics.learning_rate = learning_rate_at(schedule_, step);
    metrics.tokens = tokens_per_step();
    if (row_.has_value()) row_->totals.moved += totals.moved_by_deferred;
    totals.moved -= totals.moved_by_deferred;
    metrics.totals = totals;
    flush_row(outcome.report->first_compute_ns);
    row_ = metrics;
    done_steps_ = step;
  }

  void flush_row(std::int64_t until_ns) {
    if (!row_.has_value()) return;
    row_->step_s = static_cast<double>(until_ns - row_->totals.first_compute_ns) * 1e-9;
    if (metrics_) metrics_->write(*row_);
    summary_.add(*row_);
    const std::int64_t step = row_->step;
    const double per_step = static_cast<double>(clock_.now_ns() - started_ns_) * 1e-9 /
                            static_cast<double>(step - first_step_ + 1);
    const bool says = step % std::max<std::int64_t>(1, options_.run.log_every) == 0 ||
                      step == last_step() || row_->validation_loss.has_value();
    console_.step(says ? describe_step(*row_, total_steps_) : "", step, last_step(),
                  per_step * static_cast<double>(last_step() - step));
    row_.reset();
  }

  // After the last step before it: the updates, and what needs them done.
  void complete_boundary() {
    if (const RunReport* drained = engine_->drain()) {
      observe(*drained);
      RunTotals totals = *drained;
      ranks_.combine(totals);
      add_to_row(totals);
    }
    waits_->leave_out_until_next_run();
    const std::int64_t until_ns = clock_.now_ns();
    const bool last = done_steps_ == total_steps_;
    // Whoever sent the signal may not wait for an evaluation.
    const bool evaluates = last || (is_due(options_.run.eval_every, done_steps_) && !stops_);
    if (has_validation() && evaluates) {
      row_->validation_loss = evaluate();
      stops_ = stops_ || !row_->validation_loss.has_value();
    }
    const bool is_finite = std::isfinite(row_->validation_loss.value_or(0));
    flush_row(until_ns);
    if (!is_finite) {
      throw NotFinite(fmt::format("step {}: the validation loss is not a number", done_steps_),
                      "lower --learning-rate; what was saved before is untouched");
    }
    if (is_due(options_.run.checkpoint_every, done_steps_)) save();
  }

  void observe(const RunReport& report) {
    waits_->add(report);
    if (trace_) trace_->add(report, *waits_);
  }

  void add_to_row(const RunTotals& drained) {
    RunTotals& totals = row_->totals;
    totals.moved += drained.moved;
    for (std::size_t l = 0; l < kLaneCount; ++l) totals.busy_s[l] += drained.busy_s[l];
  }

  // None where a signal came before the end, or what some rank has to evaluate on cannot be read.
  std::optional<double> evaluate() {
    const std::int64_t rows = engine_options_.batch.rows();
    const std::int64_t micro_batches = options_.batch.gradient_accumulation_steps;
    const auto size = static_cast<std::size_t>(rows);
    std::vector<std::int32_t> tokens(2 * size * static_cast<std::size_t>(micro_batches));
    const std::span<std::int32_t> all(tokens);
    double sum = 0;
    std::int64_t counted = 0;
    // All ranks take part to the end, also those that have no windows left.
    for (std::int64_t first = 0; first < data_->validation_windows(); first += samples_per_step()) {
      std::int64_t window = first + ranks_.data_rank() * samples_of_rank();
      for (std::int64_t m = 0; m < micro_batches; ++m) {
        const auto at = static_cast<std::size_t>(m) * 2 * size;
        const std::int64_t targets =
            fill_validation_batch(window, all.subspan(at, size), all.subspan(at + size, size));
        if (ranks_.steps().has_losses()) counted += targets;
        window += options_.batch.micro_batch_size;
      }
      sum += ranks_.sum(engine_->evaluate(tokens));
      if (ranks_.any(stop_.is_made || data_problem_ != nullptr)) {
        log_.warning(fmt::format("the evaluation after step {} was given up{}", done_steps_,
                                 stop_.is_made ? " on a signal" : ""));
        return std::nullopt;
      }
    }
    return sum / ranks_.sum(static_cast<double>(counted));
  }

  // Of a rank that cannot read them the targets are none, so that what was trained is saved first.
  std::int64_t fill_validation_batch(std::int64_t window, std::span<std::int32_t> tokens,
                                     std::span<std::int32_t> targets) {
    try {
      return data_->fill_validation_batch(window, tokens, targets);
    } catch (const Error&) {
      data_problem_ = std::current_exception();
      return 0;
    }
  }

  // --- files -------------------------------------------------------------------------------------

  // State to be saved; the last update is followed by no step that would see what it did.
  void read_finite(StateField field, const UnitLayout& unit, std::int64_t begin,
                   std::span<float> out) {
    reads_state_ = true;
    state_->read(field, static_cast<std::int32_t>(unit.index), begin, out);
    reads_state_ = false;
    if (std::all_of(out.begin(), out.end(), [](float value) { return std::isfinite(value); }))
      return;
    throw NotFinite(
        fmt::format("after step {} the state of unit {} is not finite", done_steps_, unit.index),
        "lower --learning-rate; what was saved before is untouched");
  }

  // The state after the last finished step; once, however many reasons there are.
  void save() {
    if (saved_step_ == done_steps_) return;
    saved_step_ = done_steps_;
    if (!ranks_.is_first()) return state_->serve_reads();
    metrics_->sync();  // a resumed run continues the rows of the steps it has
    const CheckpointProgress progress{done_steps_,
                                      next_sample_,
                                      options_.model.seed,
                                      engine_options_.batch.positions,
                                      data_->training_tokens(),
                                      engine_->loss_scale(),
                                      device_name()};
    const std::string path =
        write_checkpoint(run_dir_, progress, model_, layout_,
                         [this](StateField field, const UnitLayout& unit, std::int64_t begin,
                                std::span<float> out) { read_finite(field, unit, begin, out); });
    if (options_.run.keep_last > 0) remove_old_checkpoints(run_dir_, options_.run.keep_last);
    state_->end_reads();
    console_.say(fmt::format("saved {}", path));
  }

  void export_weights() {
    if (!ranks_.is_first()) return state_->serve_reads();
    if (!std::filesystem::is_directory(run_dir_)) {  // it is not made anew, without what was in it
      throw IoError({.operation = "export to", .path = run_dir_, .error_number = ENOENT},
                    "the run directory has vanished; its checkpoints are where it was moved to");
    }
    HfExportOptions options;
    options.directory = (std::filesystem::path(run_dir_) / "final").string();
    options.dtype = engine_options_.compute_type;
    write_hf_directory(options, model_, layout_,
                       [this](const UnitLayout& unit, const ParameterTensor& tensor,
                              std::int64_t begin, std::span<float> out) {
                         read_finite(StateField::kMaster, unit, tensor.offset + begin, out);
                       });
    state_->end_reads();
    console_.say(fmt::format("saved {}", options.directory));
  }

  const TrainCommand& command_;
  const TrainOptions& options_;
  RankGroup ranks_;
  StopRequest& stop_;
  TrainConsole& console_;
  Log& log_;
  SystemClock clock_;
  ModelConfig model_;
  std::vector<UnitLayout> layout_;
  const MachineShare machine_;
  const std::unique_ptr<ComputeBackend> backend_;  // null: the CPU device
  EngineOptions engine_options_;
  std::unique_ptr<Dataset> data_;
  LrSchedule schedule_;
  std::string run_dir_;
  std::unique_ptr<RunDirectoryLock> lock_;
  EnginePlan plan_;  // before the engine, whose lanes may still run when a step has failed
  std::unique_ptr<Engine> engine_;
  std::optional<RankedState> state_;
  std::unique_ptr<MetricsFile> metrics_;  // of the first rank, as the trace
  TimeSummary summary_;
  std::optional<StepWaits> waits_;
  std::optional<TraceFile> trace_;

  bool stops_ = false;        // some rank was asked to stop
  bool reads_state_ = false;  // what is thrown meanwhile is of the state's homes
  std::int64_t total_steps_ = 0;
  std::int64_t done_steps_ = 0;
  std::int64_t saved_step_ = -1;  // of the latest checkpoint in the run directory
  std::int64_t first_step_ = 1;
  std::int64_t next_sample_ = 0;
  std::int64_t started_ns_ = 0;
  std::vector<std::int32_t> tokens_;
  std::int64_t fetched_step_ = 0;  // whose tokens these are
  std::exception_ptr data_problem_;
  std::optional<StepMetrics> row_;  // finished, its time not yet known
};

}  // namespace

TrainOutcome train_rank(const TrainCommand& command, const LaunchedRanks& ranks, StopRequest& stop,
                        TrainConsole& console, Log& log) {
  return Trainer(command, ranks, stop, console, log).run();
}

TrainOutcome train(const TrainCommand& command, StopRequest& stop, TrainConsole& console,
                   Log& log) {
  if (command.options.ranks.local_ranks == 1) {
    return train_rank(command, {}, stop, console, log);
  }
  return train_local_ranks(command, stop, console, log);
}

}  // namespace terrace
