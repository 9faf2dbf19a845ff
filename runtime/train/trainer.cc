#include "runtime/train/trainer.h"

#include <exception>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/hf_directory.h"
#include "runtime/checkpoint/weight_state.h"
#include "runtime/config/check_options.h"
#include "runtime/train/best_record.h"
#include "runtime/train/data_defaults.h"
#include "runtime/train/document_report.h"
#include "runtime/train/dry_run.h"
#include "runtime/train/dry_run_document.h"
#include "runtime/train/evaluation.h"
#include "runtime/train/gradient_errors.h"
#include "runtime/train/plan_explanation.h"
#include "runtime/train/processors.h"
#include "runtime/train/prompt_answers.h"
#include "runtime/train/rank_agreement.h"
#include "runtime/train/rank_group.h"
#include "runtime/train/rank_limits.h"
#include "runtime/train/rank_plans.h"
#include "runtime/train/rank_samples.h"
#include "runtime/train/rank_shares.h"
#include "runtime/train/ranked_state.h"
#include "runtime/train/resume.h"
#include "runtime/train/run_data.h"
#include "runtime/train/run_directory.h"
#include "runtime/train/run_saver.h"
#include "runtime/train/run_saves.h"
#include "runtime/train/stage_cut.h"
#include "runtime/train/start_doubts.h"
#include "runtime/train/start_obstacles.h"
#include "runtime/train/start_weights.h"
#include "runtime/train/step_feed.h"
#include "runtime/train/step_observer.h"
#include "runtime/train/step_prediction.h"
#include "runtime/train/step_rows.h"
#include "runtime/train/train_report.h"
#include "runtime/train/train_setup.h"
#include "runtime/train/tuning.h"

namespace terrace {
namespace {

class Trainer {
 public:
  Trainer(const TrainCommand& command, const LaunchedRanks& ranks, StopRequest& stop,
          TrainConsole& console, Log& log)
      : command_(command),
        options_(command.options),
        ranks_(ranks.world, mesh_for(options_, ranks), ranks.stands_for),
        stop_(stop),
        console_(console),
        log_(log),
        tuned_(tuned_model(options_.model)),
        model_(tuned_.config),
        layout_(parameter_layout(model_)),
        machine_(machine_share(options_, ranks)),
        backend_(make_backend(machine_.gpu)),
        engine_options_(engine_options_for(options_, model_, machine_)) {
    engine_options_.backend = backend_.get();
    engine_options_.shared_plans = ranks.plans;
    agree_on_limits(options_, machine_, ranks_, engine_options_, console_);
    set_micro_batches(options_, ranks_, engine_options_);
  }

  TrainedPart train() {
    const TrainOutcome outcome = run();
    const StageWork work = observer_ ? work_of_stage(plan_, *observer_) : StageWork();
    return {outcome, run_dir_, done_steps_, work};
  }

 private:
  TrainOutcome run() {
    check_same_model(ranks_, model_);
    open_data();
    // A checkpoint or weights elsewhere are opened before the step is compiled. A checkpoint in the
    // run's own directory has to wait until the leftovers of a crash are cleared there.
    const bool is_in_place = resumes_in_place(options_.run.resume, options_.run.run_dir);
    std::unique_ptr<Checkpoint> checkpoint = is_in_place ? nullptr : find_start();
    if (options_.run.dry_run) return run_dry(is_in_place ? find_start() : std::move(checkpoint));
    plan();
    data_->check_validation();
    take_run_directory();
    const AskedResult asked = {options_, run_dir_, total_steps_, has_validation()};
    if (tell_complete(asked, ranks_, console_)) return TrainOutcome::kDone;
    if (is_in_place) checkpoint = find_start();
    if (is_in_place && checkpoint != nullptr)
      refuse_to_overwrite(options_.run, run_dir_, checkpoint->progress().step);
    const auto done = checkpoint != nullptr ? checkpoint->progress() : CheckpointProgress();
    settle_steps(done);
    refuse_second_run(options_.run.resume, run_dir_);
    check_room(room_, options_.tiers, machine_);
    saves_.emplace(saving_run(done.step), ranks_, console_, log_);
    options_.run.checkpoint_every = saves_->interval();
    ranks_.add_devices(exchange_of(backend_.get()), communicator_options_for(options_.ranks));
    engine_options_.ranks = ranks_.steps();
    hashes_ = hash_file_for(options_.run, run_dir_, ranks_.rank(), machine_.gpu.has_value());
    engine_options_.hashes = hashes_.get();
    const ResidentBefore before = resident_before(ranks_);
    engine_ = std::make_unique<ModelRuntime>(engine_options_, plan_, log_);
    state_.emplace(engine_->state(), plan_.model, ranks_.world());
    console_.say(describe_machine(machine_, options_.tiers.device, plan_, engine_->store_paths()));
    start_from(std::move(checkpoint));
    feed_->divide(*engine_, console_);
    observer_.emplace(engine_->program(), energy_setting(machine_));
    open_files(planned_step({plan_, machine_, before, options_.ranks.local_ranks},
                            feed_->has_steps_of_the_plan() ? prediction_ : std::nullopt, ranks_));
    const TrainOutcome outcome = train_and_tell_cause();
    const std::string traced = observer_->finish();
    if (!traced.empty()) console_.say(traced);
    rows_->tell_first_steps();
    rows_->record_waits_and_energy(observer_->waits());
    console_.say(rows_->summary(observer_->waits()) +
                 rows_->ending(best_->describe_kept(run_dir_), outcome == TrainOutcome::kDone));
    return outcome;
  }

  void open_data() {
    run_data_ = std::make_unique<RunData>(
        RunData::Request{options_, model_, options_.batch.sequence_length}, ranks_, console_, log_);
    data_ = &run_data_->dataset();
    chosen_ = choose_by_data(model_, *data_, run_data_->counts(), options_);
    engine_options_.batch = batch_for(options_, model_);
    engine_options_.batch.has_documents = data_->has_documents();
    data_hash_ = data_->training_hash();
    if (ranks_.is_first()) warn_of(options_.run.notes, log_);
    if (ranks_.is_first()) warn_of(tuned_.doubts, log_);
    if (ranks_.is_first()) warn_of(doubts_of_data(options_, model_, *data_), log_);
    answers_.emplace(PromptAnswers::Setting{options_, model_, engine_options_.compute_type,
                                            ranks_.count(), run_data_->tokenizer(), stop_},
                     log_);
    const SampleShare share = {engine_options_.batch, engine_options_.placement.micro_batches,
                               ranks_.data_rank(), ranks_.data_ranks(), model_.ropes};
    if (!options_.run.eval_samples.has_value()) {
      options_.run.eval_samples = default_evaluation_samples(
          options_.batch.gradient_accumulation_steps * share.of_micro_batches());
    }
    samples_.emplace(*data_, share, evaluation_samples(*options_.run.eval_samples, *data_));
    samples_->check_evaluated();
    feed_.emplace(options_, *samples_, ranks_, log_);
    best_.emplace(best_setting(options_.run, *samples_));
    settle_steps(resumed_progress(options_.run.resume, options_.run.run_dir));
    if (ranks_.is_first()) warn_of(doubts_of_choices(options_, *data_, total_samples_), log_);
  }

  // Sets how far the run goes, given the progress of the steps before it.
  void settle_steps(const CheckpointProgress& done) {
    total_steps_ = total_steps_for(options_, *data_, samples_->share().of_micro_batches(), done);
    total_samples_ = feed_->samples_used_by(total_steps_, done);
    check_total_steps(options_, total_steps_);
    schedule_ = schedule_for(options_, total_steps_);
  }

  std::string data_summary() const {
    UsedData use = {.total_steps = total_steps_, .total_samples = total_samples_};
    use.samples_per_step = feed_->samples_of_largest();
    use.evaluated_samples = samples_->evaluated();
    use.evaluated_every = options_.run.eval_every;
    use.is_at_most = options_.batch.adapts_accumulation;
    return chosen_ + describe_data(*data_, use) +
           describe_documents(*data_, run_data_->tokenizer()) + feed_->describe_planned();
  }

  void plan() {
    plan_ = checked_plan(engine_options_, ranks_, console_);
    room_ = room_need(engine_options_, plan_, machine_, ranks_);
    memory_ = tell_plan(engine_options_, plan_, ranks_, console_);
    prediction_ = tell_prediction({engine_options_, plan_, machine_, ranks_},
                                  feed_->planned_tokens(), console_);
    console_.say(data_summary());
  }

  TrainOutcome run_dry(const std::unique_ptr<Checkpoint>& checkpoint) {
    if (checkpoint != nullptr) check_resume(*checkpoint, resuming_run());
    const std::int64_t done = checkpoint == nullptr ? 0 : checkpoint->progress().step;
    dry_run({options_, engine_options_, machine_, ranks_, data_summary(), documents_json(*data_),
             saving_need(saving_run(done)), total_steps_, feed_->planned_tokens()},
            console_);
    return TrainOutcome::kDone;
  }

  const char* device_name() const { return machine_.gpu.has_value() ? "cuda" : "cpu"; }
  std::int64_t last_step() const { return command_.last_step(total_steps_); }
  bool has_validation() const { return data_->validation_samples() > 0; }

  // Returns the checkpoint to go on from, the same on all ranks. Null: there is none, and the
  // weights that the run starts from, if any, are open.
  std::unique_ptr<Checkpoint> find_start() {
    const std::string& directory = run_dir_.empty() ? options_.run.run_dir : run_dir_;
    std::unique_ptr<Checkpoint> checkpoint = find_checkpoint(options_.run.resume, directory);
    check_same_checkpoint(ranks_, checkpoint.get());
    if (checkpoint == nullptr) open_weights();
    return checkpoint;
  }

  void open_weights() {
    weights_ = open_start_weights(options_.model, model_, layout_, ranks_, log_);
    if (weights_ == nullptr) return;
    loaded_types_ = weights_->types();
    if (ranks_.is_first()) warn_of(doubts_of_weights(options_, model_, *data_), log_);
  }

  void take_run_directory() {
    if (ranks_.is_first()) {
      directory_ = std::make_unique<RunDirectory>(options_, log_);
      run_dir_ = directory_->path();
      recover_run_directory(run_dir_);
    }
    run_dir_ = ranks_.text_of_first(run_dir_);
  }

  WeightTypes result_types() const {
    return tuned_.types_of(options_, loaded_types_, engine_options_.compute_type);
  }

  SavingRun saving_run(std::int64_t done_steps) const {
    return {.options = options_,
            .run_dir = run_dir_.empty() ? options_.run.run_dir : run_dir_,
            .model = {model_, layout_, *engine_options_.optimizer.rule},
            .result_types = result_types(),
            .steps = {done_steps, last_step(), total_steps_},
            .nvme_bytes = room_.nvme_bytes,
            .error_bytes = errors_in_checkpoint(plan_.model)};
  }

  void write_first_files(const Ledger& largest) {
    directory_->keep();
    keep_foreign_config(run_dir_, log_);
    const RunPlan plan = {.summary = describe_plan(engine_options_, plan_),
                          .reasons = reasons_json(plan_),
                          .figures = plan_figures_json(
                              largest, prediction_, feed_->planned_tokens(), memory_json(memory_)),
                          .mesh = ranks_.steps().shape,
                          .rank_shares = feed_->shares_json(),
                          .data_hash = data_hash_};
    write_run_files(run_dir_, {options_, command_.command_line}, plan, documents_json(*data_));
    best_->write(run_dir_);
  }

  void open_files(const PlannedStep& planned) {
    saver_.emplace(
        SavedRun{.directory = run_dir_,
                 .model = model_,
                 .layout = layout_,
                 .rule = *engine_options_.optimizer.rule,
                 .keep_last = options_.run.keep_last,
                 .keep_automatic = saves_->keep_automatic(),
                 .resumed_step = options_.run.resume == "auto" ? 0 : done_steps_,
                 .staging_bytes = answers_->room_left(
                     staging_room(plan_.ledger, machine_.limits.usable_bytes())),
                 .types = result_types(),
                 .base_model = tuned_.base_model,
                 .best = *best_,
                 .frozen = &frozen_,
                 .companions = ranks_.is_first()
                                   ? run_data_->companions(options_, model_.adapter.is_there())
                                   : std::vector<HfCompanion>(),
                 .gate = ranks_.count() == 1 ? &engine_->home_gate() : nullptr,
                 .first_changed = order_of_changed_units(plan_.training.program),
                 .ranks_are_threads = engine_options_.shared_plans != nullptr},
        ranks_, *state_, console_, log_);
    if (resumes_from_own_) saver_->set_saved(done_steps_);
    const Ledger largest = gather_ledger(plan_.ledger, ranks_);
    if (ranks_.is_first()) write_first_files(largest);
    rows_.emplace(StepRows::Run{done_steps_, last_step(), total_steps_, options_.run.log_every,
                                plan_.model.ranks(),
                                trial_command(command_, run_dir_, run_data_->has_conversations()),
                                seconds_at_stated_speed(engine_options_, plan_, machine_, ranks_) /
                                    static_cast<double>(feed_->tokens_of_program()),
                                planned, observer_->describe_energy(ranks_),
                                feed_->largest_to(done_steps_ + 1)},
                  console_);
    if (!ranks_.is_first()) return;
    const bool goes_on = resumes_in_place(options_.run.resume, run_dir_);
    rows_->open_file(run_dir_, goes_on ? done_steps_ : 0, largest);
    console_.opened(run_dir_);
    answers_->open_file(run_dir_, goes_on ? done_steps_ : 0);
    drop_hashes_after(run_dir_, goes_on ? done_steps_ : 0);
    if (hashes_ != nullptr) console_.say(hashes_->describe_cost());
    observer_->open_trace(run_dir_, options_.run.trace_steps, done_steps_);
  }

  // Sets the state and the step of the run. Changes no file before all ranks have verified theirs.
  void start_from(std::unique_ptr<Checkpoint> checkpoint) {
    if (checkpoint != nullptr) return resume_from(std::move(checkpoint));
    const bool has_weights = weights_ != nullptr;
    if (has_weights) {
      fill_state(tuned_.start(WeightState(*weights_)), "loading the weights");
      if (ranks_.is_first()) frozen_ = {options_.model.model, std::move(weights_), layout_};
      weights_.reset();
      check_same_parameters(ranks_, engine_->state().parameters_hash());
    } else {
      fill_state(tuned_.start(RandomState(options_.model.seed)), "initialising the state");
      frozen_ = FrozenOrigin(std::make_unique<RandomState>(options_.model.seed));
    }
    if (ranks_.is_first()) tell_fresh_start(options_, run_dir_, has_weights, console_, log_);
  }

  void fill_state(const StateSource& source, const std::string& what) {
    ConsolePhase phase(console_, what);
    engine_->fill_state(source, [&](auto done, auto total) { phase.advance(done, total); });
  }

  ResumingRun resuming_run() const {
    const std::int64_t positions = engine_options_.batch.positions;
    return {model_,    *engine_options_.optimizer.rule, options_.model.seed,
            positions, data_->training_tokens(),        last_step(),
            data_hash_};
  }

  void resume_from(std::unique_ptr<Checkpoint> checkpoint) {
    const CheckpointProgress progress = checkpoint->progress();
    check_resume(*checkpoint, resuming_run());
    try {
      checkpoint->open(layout_, {.model_directory = options_.model.model,
                                 .rank = ranks_.rank(),
                                 .ranks = ranks_.count()});
      fill_state(*checkpoint, "loading the checkpoint");
      load_errors(*checkpoint, plan_.model, engine_->state(), console_);
    } catch (const CorruptData& damage) {
      throw naming_earlier_checkpoint(damage, options_.run.resume, run_dir_);
    }
    ranks_.wait_for_all();
    done_steps_ = progress.step;
    loaded_types_ = progress.loaded_types;
    if (progress.loss_scale) engine_->set_loss_scale(*progress.loss_scale);
    resumes_from_own_ = resumes_in_place(options_.run.resume, run_dir_);
    feed_->go_on_from(progress, resumes_from_own_);
    if (ranks_.is_first()) frozen_ = FrozenOrigin(*checkpoint, resumes_from_own_);
    if (resumes_from_own_ && ranks_.is_first()) remove_later_checkpoints(run_dir_, done_steps_);
    console_.say(describe_resume(progress, device_name(), arithmetic_of(machine_)));
    const std::string other_best =
        best_->resume({run_dir_, done_steps_, progress.evaluations, resumes_from_own_}, ranks_);
    if (!other_best.empty()) console_.say(other_best);
    if (!ranks_.is_first()) return;
    tell_changes({*checkpoint, model_, feed_->samples_until(done_steps_),
                  feed_->samples_of(done_steps_ + 1), run_directory_of(checkpoint->directory())},
                 options_, console_);
  }

  // Returns whether the updates of this step must be complete before the next one begins.
  bool is_boundary(std::int64_t step) const {
    return step == last_step() || stops_ || saves_->is_due(step) ||
           (has_validation() && is_due(options_.run.eval_every, step));
  }

  // Returns whether an evaluation belongs to the step.
  bool evaluates_after(std::int64_t step) const {
    return has_validation() && (step == total_steps_ || is_due(options_.run.eval_every, step));
  }

  // Trains. A failed op ends the calls of all ranks. If this ends a call of this rank's own between
  // steps with a CommError, throws the failure of the op instead.
  TrainOutcome train_and_tell_cause() {
    try {
      return train_steps();
    } catch (const std::exception& failure) {
      saver_->complete_after(failure);
      if (dynamic_cast<const CommError*>(&failure) != nullptr) engine_->rethrow_failure();
      throw;
    }
  }

  TrainOutcome train_steps() {
    stop_.is_heard = true;
    make_up_evaluation();
    end_early_without_patience();
    while (done_steps_ < last_step() && !stops_ && !ends_early_) train_to_boundary();
    // If the data to evaluate on cannot be read, the result is kept anyway.
    const bool is_unfinished = (done_steps_ < last_step() && !ends_early_) ||
                               (lacks_evaluation_ && !ranks_.any(samples_->has_problem()));
    if (stops_ && is_unfinished) {
      save();
      samples_->end_for_problem(ranks_);
      console_.say(describe_stop(stop_.signal, done_steps_, total_steps_, command_, run_dir_));
      return TrainOutcome::kSavedOnSignal;
    }
    if (done_steps_ < total_steps_ && !ends_early_) {
      save();
      samples_->end_for_problem(ranks_);
      console_.say(describe_asked_stop(done_steps_, total_steps_, command_, run_dir_));
      return TrainOutcome::kStoppedAsAsked;
    }
    if (ends_early_) try_save();  // the result is saved in any case
    saver_->export_or_save(done_steps_, [this] { save(); });
    if (ranks_.is_first()) write_steps_of_result(run_dir_, done_steps_);
    saver_->rethrow_unsaved(done_steps_);
    samples_->end_for_problem(ranks_);
    return TrainOutcome::kDone;
  }

  // Runs steps, each begun before the previous one is finished, up to one that must be complete.
  void train_to_boundary() {
    observer_->begin_steps();
    ranks_.take_waits();  // what was waited for since the last step belongs to no step
    begin_step(done_steps_ + 1);
    for (;;) {
      const std::int64_t step = done_steps_ + 1;
      if (step < last_step()) feed_->fetch(step + 1);
      stops_ = ranks_.any(stop_.is_made() || samples_->has_problem());
      const bool boundary = is_boundary(step);
      if (!boundary) begin_step(step + 1);
      finish_step(step);
      saves_->follow(*rows_);
      if (boundary) return complete_boundary();
    }
  }

  void begin_step(std::int64_t step) {
    engine_->begin_step(feed_->take(step, learning_rate_at(schedule_, step)));
  }

  void finish_step(std::int64_t step) {
    StepOutcome outcome;
    RunTotals totals;
    RankWaits waits;
    try {
      outcome = engine_->finish_step();
      totals = *outcome.report;
      observer_->measure(totals);
      ranks_.combine(totals);
      waits = ranks_.take_waits();
    } catch (...) {  // the previous step's row lacks only its time
      rows_->flush_of_failed_run(clock_.now_ns(), log_);
      throw;
    }
    observer_->add(*outcome.report);
    rows_->add({.step = step,
                .loss = outcome.result.loss,
                .gradient_norm = outcome.result.gradient_norm,
                .learning_rate = learning_rate_at(schedule_, step),
                .loss_scale = outcome.result.loss_scale,
                .was_skipped = outcome.result.was_skipped,
                .router = outcome.result.router,
                .noise = feed_->observe(step, outcome.result),
                .tokens = feed_->tokens_of(step),
                .totals = totals,
                .waits = std::move(waits)});
    done_steps_ = step;
    saver_->poll();
  }

  // Ends a sequence of steps: completes the updates, and does the work that needs complete updates.
  void complete_boundary() {
    if (const RunReport* drained = engine_->drain()) {
      observer_->add(*drained);
      RunTotals totals = *drained;
      observer_->measure(totals);
      ranks_.combine(totals);
      rows_->add_drained(totals);
    }
    observer_->leave_out_until_next_run();
    const std::int64_t until_ns = clock_.now_ns();
    std::optional<ValidationLosses> losses;
    // The sender of a stop signal may not wait for an evaluation: a resumed run makes up for it.
    if (evaluates_after(done_steps_) && !stops_) losses = evaluate();
    if (losses.has_value()) rows_->set_validation(*losses);
    rows_->flush(until_ns);
    lacks_evaluation_ = evaluates_after(done_steps_) && !losses.has_value();
    if (losses.has_value()) take_losses(*losses);
    if (!losses.has_value() && done_steps_ == total_steps_) {
      answers_->show(done_steps_, *saver_, console_);
    }
    if (!saves_->is_due(done_steps_)) return;
    CheckpointProgress saved = progress();
    saved.is_automatic = saves_->is_automatic();
    if (done_steps_ == last_step() || stops_ || ends_early_) {  // no step follows
      if (!saved.is_automatic) try_save();
      return;
    }
    rows_->sync();
    saver_->begin_save(saved);
  }

  std::optional<ValidationLosses> evaluate() {
    std::optional<ValidationLosses> losses =
        terrace::evaluate({*engine_, *samples_, ranks_, stop_, console_, log_}, done_steps_);
    stops_ = stops_ || !losses.has_value();
    return losses;
  }

  // Does the evaluation of the step that this run goes on from, if it was stopped during that.
  void make_up_evaluation() {
    if (!saver_->has(done_steps_) || !evaluates_after(done_steps_)) return;
    lacks_evaluation_ =
        ranks_.any(ranks_.is_first() && lacks_validation_loss(run_dir_, done_steps_));
    if (!lacks_evaluation_) return;
    const std::optional<ValidationLosses> losses = evaluate();
    lacks_evaluation_ = !losses.has_value();
    if (!losses.has_value()) return;
    rows_->add_to_last_row(*losses);
    console_.say(fmt::format("{} after step {}, which the previous run had not evaluated",
                             describe_losses(*losses), done_steps_));
    take_losses(*losses);
  }

  // Keeps the evaluated state if it is the best one, and decides whether the run goes on.
  void take_losses(const ValidationLosses& losses) {
    check_validation_losses(losses, done_steps_);
    answers_->show(done_steps_, *saver_, console_);
    const bool is_best = best_->add(done_steps_, losses.front().loss) && try_save();
    if (is_best) best_->set_kept(done_steps_);
    if (ranks_.is_first() && best_->is_kept()) best_->write(run_dir_);
    if (is_best) saver_->remove_old();  // such as the previous best one
    end_early_without_patience();
  }

  void end_early_without_patience() {
    if (ends_early_ || !best_->is_out_of_patience() || done_steps_ == total_steps_) return;
    ends_early_ = true;
    console_.say(best_->describe_end());
  }

  CheckpointProgress progress() const {
    const std::int64_t tokens = data_->training_tokens();
    CheckpointProgress now = {
        done_steps_, feed_->next_sample(),  options_.model.seed, engine_options_.batch.positions,
        tokens,      engine_->loss_scale(), device_name(),       arithmetic_of(machine_),
        data_hash_,  loaded_types_,         best_->history()};
    feed_->add_to(now);
    return now;
  }

  // Saves the state after the last finished step; only once, however many reasons there are.
  void save() {
    rows_->sync();  // a resumed run continues the rows of the steps it has
    saver_->save(progress());
  }

  // Does the same, but a full drive is reported when the run ends.
  bool try_save() {
    rows_->sync();
    return saver_->try_save(progress());
  }

  const TrainCommand& command_;
  TrainOptions options_;  // with the choices made here where no flag decides
  RankGroup ranks_;
  StopRequest& stop_;
  TrainConsole& console_;
  Log& log_;
  SystemClock clock_;
  const TunedModel tuned_;
  const ModelConfig& model_;
  std::vector<UnitLayout> layout_;
  const MachineShare machine_;
  const std::unique_ptr<ComputeBackend> backend_;  // null: the CPU device
  ModelRuntimeOptions engine_options_;
  std::unique_ptr<RunData> run_data_;
  const Dataset* data_ = nullptr;           // of run_data_
  std::string chosen_;                      // what the data has chosen, for the console
  std::optional<std::uint64_t> data_hash_;  // at the start of the run
  LrSchedule schedule_;
  std::unique_ptr<HfDirectory> weights_;  // until the state is filled from them
  FrozenOrigin frozen_;
  std::optional<WeightTypes> loaded_types_;  // of the weights that the run started from
  std::string run_dir_;
  std::unique_ptr<RunDirectory> directory_;   // of the first rank
  std::optional<StepPrediction> prediction_;  // of the slowest rank
  RoomNeed room_;                             // of this host
  std::vector<RankMemory> memory_;            // empty: the same on all ranks
  TierPlan plan_;  // before the engine, whose lanes may still run after a failed step
  std::unique_ptr<HashFile> hashes_;  // before the engine; null: none are recorded
  std::unique_ptr<ModelRuntime> engine_;
  std::optional<RankedState> state_;
  std::optional<RankSamples> samples_;
  std::optional<StepFeed> feed_;
  std::optional<PromptAnswers> answers_;
  std::optional<BestRecord> best_;
  std::optional<RunSaves> saves_;
  std::optional<RunSaver> saver_;
  std::optional<StepRows> rows_;
  std::optional<StepObserver> observer_;
  bool stops_ = false;             // some rank was asked to stop
  bool lacks_evaluation_ = false;  // one that belongs to the last step done
  bool ends_early_ = false;        // out of --early-stopping-patience
  std::int64_t total_steps_ = 0;
  std::int64_t total_samples_ = 0;  // up to total_steps_
  std::int64_t done_steps_ = 0;
  bool resumes_from_own_ = false;  // a checkpoint of the run directory
};

}  // namespace

TrainOutcome train_rank(const TrainCommand& command, const LaunchedRanks& ranks, StopRequest& stop,
                        TrainConsole& console, Log& log) {
  check_same_options(ranks.world, command.options);
  return train_in_parts(command, ranks.world, console, log, [&](const TrainCommand& part) {
    return Trainer(part, ranks, stop, console, log).train();
  });
}

}  // namespace terrace
