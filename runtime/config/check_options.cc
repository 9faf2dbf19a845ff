#include "runtime/config/check_options.h"

#include <fmt/format.h>

#include <array>

#include "base/error.h"
#include "runtime/config/train_flags.h"

namespace terrace {
namespace {

// Refuses options that need the same number of micro-batches on all ranks and in all steps.
void check_rank_shares(const TrainOptions& options, CommandUse use) {
  if (use == CommandUse::kPlan && options.batch.changes_accumulation()) {
    throw ConfigError(
        "--accumulation-schedule: a plan is for one step, and does not know how many micro-batches "
        "it has",
        "give --gradient-accumulation-steps for the step to plan");
  }
  if (!options.ranks.has_shares()) return;
  const auto refuse = [](const std::string& with, const std::string& why) {
    throw ConfigError(fmt::format("--rank-shares with {}: {}", with, why), "give only one of them");
  };
  if (use == CommandUse::kPlan) {
    throw ConfigError(
        "--rank-shares: terrace plan gives all data-parallel ranks the same number of "
        "micro-batches",
        "give --rank-shares equal, or leave it out");
  }
  if (options.run.record_hashes) {
    refuse("--record-hashes",
           "terrace diff pairs micro-batches by their position on a rank, which depends on the "
           "shares");
  }
  if (!options.batch.accumulation_schedule.empty() || options.batch.adapts_accumulation) {
    refuse("--accumulation-schedule",
           "a rank with a share has the same number of micro-batches in every step");
  }
  if (options.step.gradient_reduction == ReductionChoice::kMicroBatch) {
    refuse("--gradient-reduction micro-batch", "ranks would add gradients that some do not have");
  }
  if (options.step.pipeline_schedule == PipelineSchedule::kInterleaved) {
    refuse("--pipeline-schedule interleaved",
           "every rank's number of micro-batches must be a multiple of the number of stages");
  }
}

void check_stage_speeds(const StepOptions& step, CommandUse use) {
  if (!step.measures_stage_speeds || use != CommandUse::kPlan) return;
  throw ConfigError("--stage-speeds auto: only the steps of a run measure the speeds of its stages",
                    "give a number for each pipeline stage, or leave it out");
}

void check_needed(const TrainOptions& options, CommandUse use) {
  if (options.model.model.empty()) {
    throw ConfigError("--model is missing", "name a directory with config.json, or a preset");
  }
  if (options.data.data.empty() && use == CommandUse::kTrain) {
    throw ConfigError("--data is missing", "name files or directories to train on");
  }
}

void check_warmup(const OptimizerFlags& optimizer) {
  if (optimizer.warmup_steps == 0 || optimizer.warmup_ratio == 0) return;
  throw ConfigError(fmt::format("--warmup-steps {} and --warmup-ratio {} both say how long the "
                                "learning rate warms up",
                                optimizer.warmup_steps, optimizer.warmup_ratio),
                    "give one of them");
}

// The profile of a plan says whether there are GPUs, so there only the masters are checked.
void check_precision(const TrainOptions& options, CommandUse use) {
  if (options.precision != Precision::kFp16) return;
  if (options.tiers.device.kind != DeviceKind::kCuda && use != CommandUse::kPlan) {
    throw ConfigError(
        "--precision fp16 computes on GPUs only: the CPU device has no kernels for it, and "
        "--device auto may choose the CPU",
        "use --precision bf16, or --device cuda");
  }
  if (options.optimizer.master_weights == MasterChoice::kSplit) {
    throw ConfigError(
        "--master-weights split with --precision fp16: 16 more bits do not turn an fp16 parameter "
        "into the fp32 one",
        "leave it out for whole masters, or compute with --precision bf16");
  }
}

void check_masters(const TrainOptions& options) {
  if (options.optimizer.master_weights == MasterChoice::kSplit &&
      options.precision == Precision::kFp32) {
    throw ConfigError("--master-weights split: fp32 parameters are their own masters",
                      "leave it out, or compute with --precision bf16");
  }
}

void check_validation(const TrainOptions& options,
                      FunctionRef<bool(std::string_view flag)> is_given) {
  const bool has_data = !options.data.validation_data.empty();
  if (has_data && is_given("validation-fraction")) {
    throw ConfigError(
        "--validation-data and --validation-fraction both define the validation split",
        "give one of them");
  }
  if (!has_data && options.data.validation_fraction == 0 && options.run.eval_every > 0) {
    throw ConfigError(fmt::format("--eval-every {} with --validation-fraction 0: there is nothing "
                                  "to evaluate on",
                                  options.run.eval_every),
                      "give --validation-data or a fraction above 0, or leave --eval-every out");
  }
}

// Refuses options for the best state without --eval-every. There would be only one evaluation,
// after the last step: nothing to compare, and no run to end early.
void check_best(const RunOptions& run) {
  if (run.eval_every > 0) return;
  const bool has_patience = run.early_stopping_patience > 0;
  if (!run.keep_best && !has_patience) return;
  throw ConfigError(
      fmt::format("{} without --eval-every: the best state is found by comparing the losses of "
                  "evaluations",
                  run.keep_best ? "--keep-best" : "--early-stopping-patience"),
      "give --eval-every STEPS");
}

void check_weights(const DataOptions& data) {
  if (data.data_weights.empty() || data.data_weights.size() == data.data.size()) return;
  throw ConfigError(fmt::format("--data-weights has {} numbers, but --data names {} paths",
                                data.data_weights.size(), data.data.size()),
                    "give one weight for each path");
}

void check_error_feedback(const TrainOptions& options) {
  const StepOptions& step = options.step;
  if (step.error_feedback.value_or(false) && step.gradient_wire == WireForm::kPlain) {
    throw ConfigError("--error-feedback on: plain gradients lose nothing between ranks",
                      "give --gradient-wire-dtype int8 or int4, or leave it out");
  }
  if (!step.error_feedback.value_or(true) && step.gradient_wire == WireForm::kInt4) {
    throw ConfigError(
        "--error-feedback off with --gradient-wire-dtype int4: without it 4 bits lose too much of "
        "the gradients",
        "leave it out, or give --gradient-wire-dtype int8");
  }
  if (options.tiers.places[StateClass::kErrors] != Placement::kAuto && !step.keeps_errors()) {
    throw ConfigError("--place-gradient-errors without error feedback: no errors are kept",
                      "give --error-feedback on, or leave it out");
  }
}

void check_places(const TierOptions& tiers) {
  for (const StateClassInfo& info : kStateClasses) {
    const Placement placement = tiers.places[info.state];
    const std::string_view flag = place_flag(info.state);
    if (placement == Placement::kDevice && !tiers.device_memory &&
        tiers.device.kind != DeviceKind::kCuda) {
      throw ConfigError(fmt::format("--{} device: without --device-memory, device and host memory "
                                    "of the CPU are one tier, called host",
                                    flag),
                        "give --device-memory SIZE or --device cuda, or place it on host");
    }
    if (placement == Placement::kNvme && tiers.nvme.empty()) {
      throw ConfigError(fmt::format("--{} nvme: no drive is given", flag),
                        "give --nvme DIR, or place it on host");
    }
  }
}

void check_lora(const ModelOptions& model) {
  const LoraOptions& lora = model.lora;
  const bool is_there = lora.rank.has_value() || !lora.adapter.empty();
  const bool has_settings = lora.alpha.has_value() || !lora.targets.empty() ||
                            lora.is_rank_stabilized.has_value() ||
                            lora.has_magnitudes.has_value() || lora.dropout.value_or(0) > 0;
  if (has_settings && !is_there) {
    throw ConfigError(
        "--lora-alpha, --lora-targets, --lora-type, --lora-rslora and --lora-dropout describe an "
        "adapter, but this run has none",
        "give --lora-rank N for a new one, or --adapter DIR");
  }
  if (model.base_quantization && !is_there) {
    throw ConfigError(
        "--base-quantization applies to the model under an adapter, but this run has no adapter",
        "give --lora-rank N for a new one, or --adapter DIR");
  }
}

void check_parallelism(const StepOptions& step) {
  if (step.island_ranks.has_value() && step.zero_partition == ZeroPartition::kAll) {
    throw ConfigError(
        fmt::format("--island-ranks {} without islands: --zero-partition all divides states over "
                    "all data-parallel ranks",
                    *step.island_ranks),
        "give --zero-partition hpz or hsdp, or leave --island-ranks out");
  }
  if (step.sequence_parallel.value_or(false) && step.tensor_parallel == 1) {
    throw ConfigError(
        "--sequence-parallel on: the tensor-parallel ranks would share the rows, but "
        "--tensor-parallel is 1",
        "give --tensor-parallel, or leave --sequence-parallel out");
  }
}

}  // namespace

void check_learning_rate(const OptimizerFlags& optimizer) {
  if (optimizer.min_learning_rate.value_or(0) > optimizer.learning_rate) {
    throw ConfigError(fmt::format("--min-learning-rate {} is above --learning-rate {}",
                                  *optimizer.min_learning_rate, optimizer.learning_rate),
                      "lower it, or leave it out: then it is a tenth of the learning rate");
  }
}

void check_total_steps(const TrainOptions& options, std::int64_t total_steps) {
  const BatchOptions& batch = options.batch;
  const std::string all = batch.max_steps != 0
                              ? fmt::format("--max-steps {}", total_steps)
                              : fmt::format("the {} steps of --num-train-epochs", total_steps);
  if (batch.stop_after_step.value_or(0) > total_steps) {
    throw ConfigError(
        fmt::format("--stop-after-step {} is after the last of {}", *batch.stop_after_step, all),
        "stop at an earlier step, or go on to the last with --stop-after-step 0");
  }
  const std::int64_t last_step = batch.stop_after_step.value_or(total_steps);
  if (options.run.trace_steps && options.run.trace_steps->first > last_step) {
    throw ConfigError(
        fmt::format("--trace-steps {}:{} begins after the last step, {}",
                    options.run.trace_steps->first, options.run.trace_steps->last, last_step),
        "trace earlier steps");
  }
  if (options.optimizer.warmup_steps > total_steps) {
    throw ConfigError(
        fmt::format("--warmup-steps {} is more than {}", options.optimizer.warmup_steps, all),
        "warm up for fewer steps");
  }
}

void check_options(const TrainOptions& options, CommandUse use,
                   FunctionRef<bool(std::string_view flag)> is_given) {
  check_needed(options, use);
  check_rank_shares(options, use);
  check_stage_speeds(options.step, use);
  if (options.batch.max_steps != 0) check_total_steps(options, options.batch.max_steps);
  check_learning_rate(options.optimizer);
  check_warmup(options.optimizer);
  check_precision(options, use);
  check_masters(options);
  check_validation(options, is_given);
  check_best(options.run);
  check_weights(options.data);
  check_places(options.tiers);
  check_error_feedback(options);
  check_parallelism(options.step);
  check_lora(options.model);
  const bool prints_only = options.run.dry_run || use == CommandUse::kPlan;
  if (options.run.json && !prints_only) {
    throw ConfigError(
        "--json works only with --dry-run: a training run writes its figures to metrics.jsonl",
        "add --dry-run, or leave --json out");
  }
  if (options.run.live_port.has_value() && use == CommandUse::kPlan) {
    throw ConfigError("--live: a plan has no run to show", "leave --live out");
  }
  if (!options.run.explain.empty() && !prints_only) {
    throw ConfigError(
        "--explain works only with --dry-run: a training run writes its reasons to run.json",
        "add --dry-run, or leave --explain out");
  }
  if (!options.run.explain.empty() && options.run.json) {
    throw ConfigError("--explain with --json: the document has the reasons for all units",
                      "leave --explain out, and read the result named reasons");
  }
  if (options.run.resume == "auto" && options.run.run_dir.empty()) {
    throw ConfigError("--resume auto: a new run directory has nothing to resume from",
                      "give --run-dir DIR, or --resume PATH");
  }
}

}  // namespace terrace
