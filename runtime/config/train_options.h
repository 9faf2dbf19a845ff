#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/quantized_matrix.h"
#include "kernels/wire_forms.h"
#include "memory/state_class.h"
#include "offload/nvme_store.h"
#include "optim/lr_schedule.h"
#include "optim/update_rules.h"
#include "parallel/communicator.h"
#include "parallel/pipeline_schedule.h"
#include "parallel/zero_partition.h"
#include "runtime/config/step_range.h"
#include "runtime/data/validation_sets.h"

// The configuration of `terrace train`, as the flags of the same names set it.
namespace terrace {

enum class Placement : std::uint8_t { kAuto, kDevice, kHost, kNvme };
enum class RecomputeChoice : std::uint8_t { kAuto, kNone, kFull };
enum class OrderChoice : std::uint8_t { kAuto, kLayerMajor, kMicroBatchMajor };
enum class InitChoice : std::uint8_t {
  kAuto,
  kWeights,
  kRandom
};  // auto: weights if there are any
enum class MasterChoice : std::uint8_t { kAuto, kSplit, kFp32 };
enum class GradientChoice : std::uint8_t { kFp32, kBf16 };
enum class ReductionChoice : std::uint8_t { kStep, kMicroBatch };
enum class Precision : std::uint8_t { kBf16, kFp32, kFp16 };
enum class SaveType : std::uint8_t { kAuto, kFp32, kBf16, kFp16 };
enum class ProgressChoice : std::uint8_t { kAuto, kOn, kOff };

// The largest dropout of an adapter. With more, almost nothing would be left of an input.
inline constexpr double kDropoutMost = 0.99;

// A low-rank adapter. Unset values come from --adapter, or there is no adapter.
struct LoraOptions {
  std::optional<std::int64_t> rank;
  std::optional<double> alpha;             // unset: twice the rank
  std::vector<std::string> targets;        // patterns of layers; empty: all of the blocks
  std::optional<bool> is_rank_stabilized;  // unset: not
  std::optional<bool> has_magnitudes;      // --lora-type dora; unset: not
  std::optional<double> dropout;           // unset: the dropout of --adapter, or 0
  std::string adapter;                     // a directory to go on from; empty: none
};

struct ModelOptions {
  std::string model;  // a directory or a preset
  InitChoice init = InitChoice::kAuto;
  std::uint64_t seed = 1234;
  std::vector<std::string> ignored_config_keys;  // of config.json, treated as absent
  std::vector<std::string> trainable;            // patterns of tensors; empty: all train
  LoraOptions lora;
  // The form of the blocks' matrices under an adapter; unset: not quantised.
  std::optional<QuantizedForm> base_quantization;
  // The coefficients of the losses of routers. Unset: what config.json asks for, and 0.
  std::optional<double> router_aux_loss_coef;
  std::optional<double> router_z_loss_coef;
};

struct DataOptions {
  std::vector<std::string> data;
  std::string data_format = "auto";
  std::vector<ValidationSet> validation_data;
  double validation_fraction = 0.01;
  std::string chat_template;       // a file or a name; empty: the model's
  std::string tokenizer = "auto";  // "auto", "bytes", or a path
  std::string packing;             // empty: follows the format of the data
  std::string loss_on = "completion";
  std::vector<double> data_weights;  // one for each of `data`; empty: an epoch is all of it
};

// The samples of a step over all data-parallel ranks, as a DeepSpeed configuration gives them. The
// rest of the batch follows once the number of ranks is known: settle_batch().
struct GlobalBatch {
  std::int64_t samples = 0;
  std::string where;             // the source of the number, for people
  bool has_micro_batch = false;  // whether micro_batch_size is given
  bool has_accumulation = false;
};

// The number of micro-batches that each step has from a step on.
struct AccumulationPhase {
  std::int64_t micro_batches = 1;
  std::int64_t first_step = 1;

  friend bool operator==(const AccumulationPhase&, const AccumulationPhase&) = default;
};

struct BatchOptions {
  std::int64_t sequence_length = 0;  // 0: chosen by the data
  std::int64_t micro_batch_size = 1;
  std::int64_t gradient_accumulation_steps = 1;          // with a schedule: its largest number
  std::vector<AccumulationPhase> accumulation_schedule;  // by step, from step 1 on; empty: constant
  // --accumulation-schedule auto: the gradient noise scale decides, and gradient_accumulation_steps
  // is the largest number.
  bool adapts_accumulation = false;
  bool measures_gradient_noise = false;
  std::int64_t max_steps = 0;  // 0: num_train_epochs decides
  std::optional<double> num_train_epochs;
  std::optional<std::int64_t> stop_after_step;
  std::optional<GlobalBatch> global;

  // Returns whether steps may have different numbers of micro-batches.
  bool changes_accumulation() const {
    return adapts_accumulation || accumulation_schedule.size() > 1;
  }
};

struct OptimizerFlags {
  double learning_rate = 3e-4;
  bool names_learning_rate = false;         // else the data may choose another
  std::optional<double> min_learning_rate;  // unset: a tenth of learning_rate
  std::int64_t warmup_steps = 0;
  double warmup_ratio = 0;  // of all steps, in place of warmup_steps
  LrSchedulerType lr_scheduler_type = LrSchedulerType::kCosine;
  double weight_decay = 0.1;
  const UpdateRule* rule = update_rules().front();
  // The values of the rule's hyperparameters, in the rule's order; unset: the default. They are set
  // after the rule.
  std::array<std::optional<double>, kMostHyperparameters> hyperparameters;
  double max_grad_norm = 1.0;
  SlotForm optimizer_state_dtype = SlotForm::kFp32;
  MasterChoice master_weights = MasterChoice::kAuto;
  GradientChoice gradient_dtype = GradientChoice::kFp32;

  // Returns the value of the rule's hyperparameter with this number.
  double value_of(std::size_t number) const;
  // Returns the numbers that set up the updates.
  RuleOptions numbers() const;
};

enum class DeviceKind : std::uint8_t { kAuto, kCpu, kCuda };

struct DeviceChoice {
  // auto: the first GPU where the run has one rank and that GPU can be used, else the CPU.
  DeviceKind kind = DeviceKind::kAuto;
  // The number of the GPU; unset: the number that the rank has on its host.
  std::optional<int> ordinal;

  friend bool operator==(const DeviceChoice&, const DeviceChoice&) = default;
};

struct TierOptions {
  DeviceChoice device;
  // Unset: unified mode on the CPU device, the free memory on a GPU.
  std::optional<std::size_t> device_memory;
  std::optional<std::size_t> host_memory;  // unset: derived from the free memory
  std::vector<NvmeDirectory> nvme;
  ByStateClass<Placement> places;
  IoEngineKind io_engine = IoEngineKind::kAuto;
  std::optional<std::int32_t> lookahead;
  std::optional<int> threads;  // unset: the affinity mask and the cgroup limit
};

struct StepOptions {
  RecomputeChoice recompute = RecomputeChoice::kAuto;
  OrderChoice micro_batch_order = OrderChoice::kAuto;
  std::int64_t experts_per_group = 0;  // 0: as many as the memory allows
  ReductionChoice gradient_reduction = ReductionChoice::kStep;
  int tensor_parallel = 1;
  std::optional<bool> sequence_parallel;  // unset: with tensor parallelism
  int pipeline_parallel = 1;
  PipelineSchedule pipeline_schedule = PipelineSchedule::k1F1B;
  std::optional<int> virtual_stages;  // unset: 2 where interleaved, else 1
  // The speeds of the pipeline stages relative to each other; empty: all are equally fast, or the
  // first steps of the run measure them.
  std::vector<double> stage_speeds;
  bool measures_stage_speeds = false;
  std::optional<int> zero_stage;  // unset: 0 with one rank, else 1
  ZeroPartition zero_partition = ZeroPartition::kAll;
  WireForm gradient_wire = WireForm::kPlain;   // in which data-parallel ranks send gradients
  WireForm parameter_wire = WireForm::kPlain;  // in which they send parameters
  std::optional<bool> error_feedback;          // unset: with int4 gradients
  std::optional<int> island_ranks;             // data-parallel ranks; unset: of a host

  // Returns whether ranks keep what the codes of their gradients lose.
  bool keeps_errors() const { return error_feedback.value_or(gradient_wire == WireForm::kInt4); }
};

struct RankOptions {
  std::int32_t local_ranks = 1;       // as threads of this process
  double collective_timeout_s = 600;  // how long ranks wait for each other; unused with one rank
  HierarchicalUse hierarchical_collectives = HierarchicalUse::kAuto;
  // The parts of a step's micro-batches that data-parallel ranks have, in proportion to these
  // numbers or to what is measured; without either they are equal.
  std::vector<std::int64_t> rank_shares;
  bool measures_rank_shares = false;

  bool has_shares() const { return measures_rank_shares || !rank_shares.empty(); }
};

// The interval at which the state is saved while the run goes on.
struct SaveInterval {
  // auto: about every 15 minutes, and the last two of these are kept.
  bool is_automatic = true;
  std::int64_t steps = 0;  // 0: none; of an automatic interval: not chosen yet

  friend bool operator==(const SaveInterval&, const SaveInterval&) = default;
};

struct RunOptions {
  std::string run_dir;          // empty: runs/<model>-<time>
  std::int64_t eval_every = 0;  // 0: only after the last step
  // The samples that an evaluation covers; 0: the whole split. Unset: as many as cost the
  // operations of 20 training steps, at least 16.
  std::optional<std::int64_t> eval_samples;
  std::string sample_prompts;  // the file of prompts that each evaluation answers; empty: none
  std::int64_t log_every = 1;
  SaveInterval checkpoint_every;  // besides the one at the end of an unfinished run
  std::int64_t keep_last = 0;     // 0: all; of automatic ones, two
  bool keep_best = false;         // the checkpoint with the lowest validation loss
  // The number of evaluations without a lower validation loss that ends the run; 0: it never ends
  // early.
  std::int64_t early_stopping_patience = 0;
  std::string resume = "none";   // none, auto, or a checkpoint's path
  bool overwrite_later = false;  // a resume may delete the checkpoints after its own
  SaveType save_dtype = SaveType::kAuto;
  ProgressChoice progress = ProgressChoice::kAuto;
  std::optional<StepRange> trace_steps;
  bool record_hashes = false;  // of the values that each step computes
  // The port of 127.0.0.1 that serves the report of the run; 0: any that is free; unset: none.
  std::optional<int> live_port;
  bool dry_run = false;
  std::string explain;             // the unit whose plan a dry run gives reasons for; empty: none
  bool json = false;               // for a dry run: a document instead of text
  std::vector<std::string> notes;  // about the sources of the options: one sentence each
};

struct TrainOptions {
  ModelOptions model;
  DataOptions data;
  BatchOptions batch;
  OptimizerFlags optimizer;
  Precision precision = Precision::kBf16;
  TierOptions tiers;
  StepOptions step;
  RankOptions ranks;
  RunOptions run;
};

}  // namespace terrace
