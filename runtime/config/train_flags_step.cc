#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "runtime/config/toml_text.h"
#include "runtime/config/train_flags.h"

namespace terrace {
namespace {

constexpr auto kRecomputes = std::to_array<std::string_view>({"auto", "none", "full"});
constexpr auto kOrders =
    std::to_array<std::string_view>({"auto", "layer-major", "micro-batch-major"});
constexpr auto kReductions = std::to_array<std::string_view>({"step", "micro-batch"});
constexpr auto kSchedules = std::to_array<std::string_view>({"gpipe", "1f1b", "interleaved"});
// The names of the types, then torch's names.
constexpr auto kSaveTypeNames = std::to_array<std::string_view>(
    {"auto", "fp32", "bf16", "fp16", "float32", "bfloat16", "float16"});
constexpr auto kSaveTypes =
    std::to_array<SaveType>({SaveType::kAuto, SaveType::kFp32, SaveType::kBf16, SaveType::kFp16,
                             SaveType::kFp32, SaveType::kBf16, SaveType::kFp16});
constexpr auto kAutoOnOff = std::to_array<std::string_view>({"auto", "on", "off"});

constexpr int kRanksMax = 256;
constexpr int kPlannedRanksMax = 65536;  // a dry run has no thread for each rank

constexpr std::string_view kAutomatic = "auto";

void read_rank_shares(const FlagValue& value, RankOptions& ranks) {
  constexpr std::int64_t kMost = 1'000'000;
  const std::string& text = value.name();
  ranks.rank_shares.clear();
  ranks.measures_rank_shares = text == kAutomatic;
  if (ranks.measures_rank_shares || text == "equal") return;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const FlagValue share(value.where(), {text.substr(begin, end - begin)});
    ranks.rank_shares.push_back(share.integer(1, kMost));
    begin = end + 1;
  }
}

void read_stage_speeds(TrainOptions& options, const FlagValue& value) {
  constexpr double kLeast = 1e-3;
  constexpr double kMost = 1e3;
  StepOptions& step = options.step;
  step.stage_speeds.clear();
  step.measures_stage_speeds = value.texts() == std::vector{std::string(kAutomatic)};
  if (step.measures_stage_speeds) return;
  for (const std::string& text : value.texts()) {
    step.stage_speeds.push_back(FlagValue(value.where(), {text}).number(kLeast, kMost));
  }
}

SaveInterval parse_save_interval(const FlagValue& value) {
  const std::string& text = value.text();
  if (text == kAutomatic) return {};
  const std::string before = std::string(kAutomatic) + ":";
  if (!text.starts_with(before)) {
    const bool is_word = !text.empty() && std::isalpha(static_cast<unsigned char>(text[0])) != 0;
    if (is_word) value.refuse("neither a number of steps nor auto", "give one of them");
    return {.is_automatic = false, .steps = value.integer(0)};
  }
  const FlagValue steps(value.where(), {text.substr(before.size())});
  return {.is_automatic = true, .steps = steps.integer(1)};
}

std::string show_save_interval(const SaveInterval& interval) {
  if (!interval.is_automatic) return toml_integer(interval.steps);
  return toml_string(interval.steps == 0 ? std::string(kAutomatic)
                                         : fmt::format("{}:{}", kAutomatic, interval.steps));
}

constexpr auto kStepFlags = std::to_array<TrainFlag>({
    {{"recompute", "Step program", "auto|none|full",
      "Whether the backward pass recomputes forwards instead of keeping activations (auto)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.step.recompute = static_cast<RecomputeChoice>(v.choice(kRecomputes));
     },
     [](const TrainOptions& o) {
       return toml_string(kRecomputes.at(static_cast<std::size_t>(o.step.recompute)));
     }},
    {{"micro-batch-order", "Step program", "auto|layer-major|micro-batch-major",
      "Whether a unit processes all micro-batches before the next unit starts (auto)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.step.micro_batch_order = static_cast<OrderChoice>(v.choice(kOrders));
     },
     [](const TrainOptions& o) {
       return toml_string(kOrders.at(static_cast<std::size_t>(o.step.micro_batch_order)));
     }},
    {{"experts-per-group", "Step program", "auto|N",
      "Neighbouring experts of a layer that are moved and updated together (auto)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.step.experts_per_group = v.text() == kAutomatic ? 0 : v.integer(1);
     },
     [](const TrainOptions& o) {
       const std::int64_t experts = o.step.experts_per_group;
       return experts > 0 ? toml_integer(experts) : toml_string(std::string(kAutomatic));
     }},
    {{"zero-stage", "Step program", "0..3",
      "The state that data-parallel ranks shard (0 with one rank, else 1)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.step.zero_stage = static_cast<int>(v.integer(0, 3));
     },
     [](const TrainOptions& o) {
       return o.step.zero_stage ? toml_integer(*o.step.zero_stage) : std::string{};
     }},
    {{"zero-partition", "Step program", "all|hpz|hsdp",
      "The states that ZeRO stage 3 shards over an island of data-parallel ranks (--island-ranks) "
      "and not over all of them: none (all), parameters (hpz), all states (hsdp) (all)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.step.zero_partition = static_cast<ZeroPartition>(v.choice(kZeroPartitions));
     },
     [](const TrainOptions& o) { return toml_string(name_of(o.step.zero_partition)); }},
    {{"island-ranks", "Step program", "auto|N",
      "Neighbouring data-parallel ranks that are an island; auto: all of a host (auto)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.step.island_ranks.reset();
       if (v.text() != kAutomatic)
         o.step.island_ranks = static_cast<int>(v.integer(2, kPlannedRanksMax));
     },
     [](const TrainOptions& o) {
       return o.step.island_ranks ? toml_integer(*o.step.island_ranks)
                                  : toml_string(std::string(kAutomatic));
     }},
    {{"gradient-reduction", "Step program", "step|micro-batch",
      "When gradients are reduced across ranks; micro-batch: less memory, but other bits (step)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.step.gradient_reduction = static_cast<ReductionChoice>(v.choice(kReductions));
     },
     [](const TrainOptions& o) {
       return toml_string(kReductions.at(static_cast<std::size_t>(o.step.gradient_reduction)));
     }},
    {{"tensor-parallel", "Step program", "N",
      "Ranks that split every unit: heads, intermediate columns, vocabulary (1)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.step.tensor_parallel = static_cast<int>(v.integer(1, kRanksMax));
     },
     [](const TrainOptions& o) { return toml_integer(o.step.tensor_parallel); }},
    {{"sequence-parallel", "Step program", "on|off",
      "Whether they also split the rows of norms and hidden states (on with tensor parallelism)"},
     [](TrainOptions& o, const FlagValue& v) { o.step.sequence_parallel = v.on_off(); },
     [](const TrainOptions& o) { return toml_on_off(o.step.sequence_parallel); }},
    {{"pipeline-parallel", "Step program", "N",
      "Ranks that split the layers into pipeline stages (1)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.step.pipeline_parallel = static_cast<int>(v.integer(1, kRanksMax));
     },
     [](const TrainOptions& o) { return toml_integer(o.step.pipeline_parallel); }},
    {{"pipeline-schedule", "Step program", "1f1b|interleaved|gpipe",
      "Order in which a pipeline computes micro-batches (1f1b)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.step.pipeline_schedule = static_cast<PipelineSchedule>(v.choice(kSchedules));
     },
     [](const TrainOptions& o) {
       return toml_string(kSchedules.at(static_cast<std::size_t>(o.step.pipeline_schedule)));
     }},
    {{"virtual-stages", "Step program", "N",
      "Model pieces per rank in an interleaved pipeline (2 if interleaved, else 1)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.step.virtual_stages = static_cast<int>(v.integer(1, kRanksMax));
     },
     [](const TrainOptions& o) {
       return o.step.virtual_stages ? toml_integer(*o.step.virtual_stages) : std::string{};
     }},
    {{"stage-speeds", "Step program", "X|auto",
      "One number for each pipeline stage: its speed relative to the others, so that slower stages "
      "get fewer layers; auto: the first steps measure them (all are equally fast)",
      FlagArity::kList},
     read_stage_speeds,
     [](const TrainOptions& o) {
       if (o.step.measures_stage_speeds) return toml_string(kAutomatic);
       return o.step.stage_speeds.empty() ? std::string{} : toml_numbers(o.step.stage_speeds);
     }},

    {{"local-ranks", "Ranks", "N",
      "Number of ranks run as threads of this process, instead of using a launcher (1)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.ranks.local_ranks = static_cast<std::int32_t>(v.integer(1, kPlannedRanksMax));
     },
     [](const TrainOptions& o) { return toml_integer(o.ranks.local_ranks); }},
    {{"collective-timeout", "Ranks", "SECONDS",
      "How long ranks wait for each other before they fail (600)"},
     [](TrainOptions& o, const FlagValue& v) {
       constexpr double kMost = 1e9;  // thirty years; its nanoseconds fit 64 bits
       o.ranks.collective_timeout_s = v.positive_number();
       if (o.ranks.collective_timeout_s > kMost) v.refuse("too long", "give 1e9 s or less");
     },
     [](const TrainOptions& o) { return toml_number(o.ranks.collective_timeout_s); }},
    {{"rank-shares", "Ranks", "equal|N,N,...|auto",
      "How the micro-batches of a step are divided among data-parallel ranks: equally, in these "
      "proportions (a number for each rank), or by measured speed (equal)"},
     [](TrainOptions& o, const FlagValue& v) { read_rank_shares(v, o.ranks); },
     [](const TrainOptions& o) {
       if (o.ranks.measures_rank_shares) return toml_string(kAutomatic);
       return o.ranks.rank_shares.empty()
                  ? std::string{}
                  : toml_string(fmt::format("{}", fmt::join(o.ranks.rank_shares, ",")));
     }},
    {{"hierarchical-collectives", "Ranks", "auto|on|off",
      "How ranks on several hosts exchange data, except through NCCL. off: every rank sends to "
      "every rank of the other hosts; on: gathered data goes once to each host, and sums go from "
      "host to host; auto: as on, but sums only if fewer bytes then cross between hosts (auto)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.ranks.hierarchical_collectives = static_cast<HierarchicalUse>(v.choice(kAutoOnOff));
     },
     [](const TrainOptions& o) {
       return toml_string(
           kAutoOnOff.at(static_cast<std::size_t>(o.ranks.hierarchical_collectives)));
     }},

    {{"run-dir", "Run", "DIR", "Directory for metrics and checkpoints (runs/<model>-<time>)"},
     [](TrainOptions& o, const FlagValue& v) { o.run.run_dir = v.name(); },
     [](const TrainOptions& o) {
       return o.run.run_dir.empty() ? std::string{} : toml_string(o.run.run_dir);
     }},
    {{"eval-every", "Run", "STEPS",
      "Steps between evaluations; the last step is always followed by one (0: only that one)"},
     [](TrainOptions& o, const FlagValue& v) { o.run.eval_every = v.integer(0); },
     [](const TrainOptions& o) { return toml_integer(o.run.eval_every); }},
    {{"eval-samples", "Run", "N",
      "Validation samples of one evaluation, spread over the split; 0: all (samples worth the "
      "computation of 20 training steps, at least 16)"},
     [](TrainOptions& o, const FlagValue& v) { o.run.eval_samples = v.integer(0); },
     [](const TrainOptions& o) {
       return o.run.eval_samples ? toml_integer(*o.run.eval_samples) : std::string{};
     }},
    {{"sample-prompts", "Run", "FILE",
      "Print the model's answers to the prompts of FILE at each evaluation and after the last "
      "step, "
      "and write them to samples.jsonl; lines of text, or lines of JSON with \"prompt\" or a "
      "conversation (none)"},
     [](TrainOptions& o, const FlagValue& v) { o.run.sample_prompts = v.name(); },
     [](const TrainOptions& o) {
       return o.run.sample_prompts.empty() ? std::string{} : toml_string(o.run.sample_prompts);
     }},
    {{"log-every", "Run", "STEPS", "Steps between printed lines (1)"},
     [](TrainOptions& o, const FlagValue& v) { o.run.log_every = v.integer(1); },
     [](const TrainOptions& o) { return toml_integer(o.run.log_every); }},
    {{"checkpoint-every", "Run", "auto|auto:STEPS|STEPS",
      "Steps between checkpoints. auto: about every 15 minutes; the number of steps is set once "
      "the first ones are measured, and the last two of these checkpoints are kept; auto:STEPS: "
      "the same with this number; 0: only where an unfinished run ends (auto)"},
     [](TrainOptions& o, const FlagValue& v) { o.run.checkpoint_every = parse_save_interval(v); },
     [](const TrainOptions& o) { return show_save_interval(o.run.checkpoint_every); }},
    {{"keep-last", "Run", "N",
      "Keep only the N latest checkpoints (0: all; with --checkpoint-every auto two)"},
     [](TrainOptions& o, const FlagValue& v) { o.run.keep_last = v.integer(0); },
     [](const TrainOptions& o) { return toml_integer(o.run.keep_last); }},
    {{"keep-best", "Run", "",
      "Save the state with the lowest validation loss, measured on the first set at every "
      "--eval-every, and keep it whatever --keep-last says",
      FlagArity::kSwitch},
     [](TrainOptions& o, const FlagValue& v) { o.run.keep_best = v.on_off(); },
     [](const TrainOptions& o) { return toml_bool(o.run.keep_best); }},
    {{"early-stopping-patience", "Run", "N",
      "Save the state, write final/ and end the run after N evaluations without a lower loss on "
      "the first set (0: never)"},
     [](TrainOptions& o, const FlagValue& v) { o.run.early_stopping_patience = v.integer(0); },
     [](const TrainOptions& o) { return toml_integer(o.run.early_stopping_patience); }},
    {{"save-dtype", "Run", "auto|fp32|bf16|fp16",
      "Type of the weights in final/ (auto: as loaded; for random weights --precision)"},
     [](TrainOptions& o, const FlagValue& v) { o.run.save_dtype = parse_save_type(v); },
     [](const TrainOptions& o) {
       return toml_string(kSaveTypeNames.at(static_cast<std::size_t>(o.run.save_dtype)));
     }},
    {{"resume", "Run", "auto|none|PATH",
      "Continue from a checkpoint; auto: from the latest in the run directory, if any (none)"},
     [](TrainOptions& o, const FlagValue& v) { o.run.resume = v.name(); },
     [](const TrainOptions& o) { return toml_string(o.run.resume); }},
    {{"overwrite-later", "Run", "",
      "Let --resume PATH delete the later checkpoints in its run directory", FlagArity::kSwitch},
     [](TrainOptions& o, const FlagValue& v) { o.run.overwrite_later = v.on_off(); },
     [](const TrainOptions& o) { return toml_bool(o.run.overwrite_later); }},
    {{"progress", "Run", "auto|on|off",
      "Show a progress bar (auto: on a terminal, but not under mpirun)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.run.progress = static_cast<ProgressChoice>(v.choice(kAutoOnOff));
     },
     [](const TrainOptions& o) {
       return toml_string(kAutoOnOff.at(static_cast<std::size_t>(o.run.progress)));
     }},
    {{"trace-steps", "Run", "A:B", "Write trace.json for steps A to B"},
     [](TrainOptions& o, const FlagValue& v) { o.run.trace_steps = v.step_range(); },
     [](const TrainOptions& o) {
       const auto& range = o.run.trace_steps;
       return range ? toml_string(fmt::format("{}:{}", range->first, range->last)) : std::string{};
     }},
    {{"record-hashes", "Run", "",
      "Record hashes of the values that each step computes, for terrace diff", FlagArity::kSwitch},
     [](TrainOptions& o, const FlagValue& v) { o.run.record_hashes = v.on_off(); },
     [](const TrainOptions& o) { return toml_bool(o.run.record_hashes); }},
    {{"live", "Run", "[PORT]",
      "Serve the page of terrace report while training, on 127.0.0.1 only, with /metrics for "
      "Prometheus; without PORT on any free port (off)",
      FlagArity::kOptional},
     [](TrainOptions& o, const FlagValue& v) {
       o.run.live_port = v.texts().empty() ? 0 : static_cast<int>(v.integer(0, 65535));
     },
     [](const TrainOptions& o) {
       return o.run.live_port ? toml_integer(*o.run.live_port) : std::string{};
     }},
    {{"dry-run", "Run", "",
      "Compile and verify the step, print its memory ledger and what this machine lacks for it, "
      "then stop",
      FlagArity::kSwitch},
     [](TrainOptions& o, const FlagValue& v) { o.run.dry_run = v.on_off(); },
     [](const TrainOptions& o) { return toml_bool(o.run.dry_run); }},
    {{"explain", "Run", "UNIT",
      "Say in a dry run why the states of a unit live where they do: embedding, head, or the "
      "number of a block from 0"},
     [](TrainOptions& o, const FlagValue& v) { o.run.explain = v.name(); },
     [](const TrainOptions& o) {
       return o.run.explain.empty() ? std::string{} : toml_string(o.run.explain);
     }},
    {{"json", "Run", "", "Print the dry run as one JSON document", FlagArity::kSwitch},
     [](TrainOptions& o, const FlagValue& v) { o.run.json = v.on_off(); },
     [](const TrainOptions& o) { return toml_bool(o.run.json); }},
});

}  // namespace

SaveType parse_save_type(const FlagValue& value) {
  return kSaveTypes.at(value.choice(kSaveTypeNames));
}

std::span<const TrainFlag> step_flags() { return kStepFlags; }

}  // namespace terrace
