#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/quantized_matrix.h"
#include "memory/state_class.h"
#include "offload/nvme_store.h"
#include "optim/lr_schedule.h"
#include "optim/update_rules.h"
#include "parallel/pipeline_schedule.h"
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

// A low-rank adapter; unset: --adapter says it, or there is none.
struct LoraOptions {
  std::optional<std::int64_t> rank;
  std::optional<double> alpha;             // unset: twice the rank
  std::vector<std::string> targets;        // patterns of layers; empty: all of the blocks
  std::optional<bool> is_rank_stabilized;  // unset: not
  std::optional<bool> has_magnitudes;      // --lora-type dora; unset: not
  std::string adapter;                     // a directory to go on from; empty: none
};

struct ModelOptions {
  std::string model;  // a directory or a preset
  InitChoice init = InitChoice::kAuto;
  std::uint64_t seed = 1234;
  std::vector<std::string> ignored_config_keys;  // of config.json, taken for absent
  std::vector<std::string> trainable;            // patterns of tensors; empty: all train
  LoraOptions lora;
  // Of the matrices of blocks under an adapter; unset: not quantised.
  std::optional<QuantizedForm> base_quantization;
};

struct DataOptions {
  std::vector<std::string> data;
  std::string data_format = "auto";
  std::vector<ValidationSet> validation_data;
  double validation_fraction = 0.01;
  std::string tokenizer = "auto";  // or "bytes", or a path
  std::string packing;             // empty: as the format of the data says
  std::string loss_on = "completion";
  std::vector<double> data_weights;  // one of each of `data`; empty: all of it is one epoch
};

// Samples of a step over all data-parallel ranks, as a DeepSpeed configuration says them. The rest
// of the batch follows once the number of ranks is known: settle_batch().
struct GlobalBatch {
  std::int64_t samples = 0;
  std::string where;             // who says so, for people
  bool has_micro_batch = false;  // whether micro_batch_size is given
  bool has_accumulation = false;
};

struct BatchOptions {
  std::int64_t sequence_length = 0;  // 0: the model's positions
  std::int64_t micro_batch_size = 1;
  std::int64_t gradient_accumulation_steps = 1;
  std::int64_t max_steps = 0;  // 0: num_train_epochs decides; one of the two is needed
  std::optional<double> num_train_epochs;
  std::optional<std::int64_t> stop_after_step;
  std::optional<GlobalBatch> global;
};

struct OptimizerFlags {
  double learning_rate = 3e-4;
  std::optional<double> min_learning_rate;  // unset: a tenth of learning_rate
  std::int64_t warmup_steps = 0;
  LrSchedulerType lr_scheduler_type = LrSchedulerType::kCosine;
  double weight_decay = 0.1;
  const UpdateRule* rule = update_rules().front();
  // Of the rule's hyperparameters, in its order; unset: the standard. They are set after the rule.
  std::array<std::optional<double>, kMostHyperparameters> hyperparameters;
  double max_grad_norm = 1.0;
  SlotForm optimizer_state_dtype = SlotForm::kFp32;
  MasterChoice master_weights = MasterChoice::kAuto;
  GradientChoice gradient_dtype = GradientChoice::kFp32;

  // Of the rule's hyperparameter with this number.
  double value_of(std::size_t number) const;
  // What updates are set by.
  RuleOptions numbers() const;
};

enum class DeviceKind : std::uint8_t { kAuto, kCpu, kCuda };

struct DeviceChoice {
  // auto: the first GPU where the run has one rank and that GPU can be used, else the CPU.
  DeviceKind kind = DeviceKind::kAuto;
  // Of the GPU; unset: the number that the rank has on its host.
  std::optional<int> ordinal;

  friend bool operator==(const DeviceChoice&, const DeviceChoice&) = default;
};

struct TierOptions {
  DeviceChoice device;
  // Unset: on the CPU device unified mode, on a GPU what it has free.
  std::optional<std::size_t> device_memory;
  std::optional<std::size_t> host_memory;  // unset: what the machine leaves
  std::vector<NvmeDirectory> nvme;
  ByStateClass<Placement> places;
  IoEngineKind io_engine = IoEngineKind::kAuto;
  std::optional<std::int32_t> lookahead;
  std::optional<int> threads;  // unset: the affinity mask and the cgroup limit
};

struct StepOptions {
  RecomputeChoice recompute = RecomputeChoice::kAuto;
  OrderChoice micro_batch_order = OrderChoice::kAuto;
  ReductionChoice gradient_reduction = ReductionChoice::kStep;
  int tensor_parallel = 1;
  std::optional<bool> sequence_parallel;  // unset: with tensor parallelism
  int pipeline_parallel = 1;
  PipelineSchedule pipeline_schedule = PipelineSchedule::k1F1B;
  std::optional<int> virtual_stages;  // unset: 2 where interleaved, else 1
  std::optional<int> zero_stage;      // unset: 0 with one rank, else 1
};

struct RankOptions {
  std::int32_t local_ranks = 1;       // as threads of this process
  double collective_timeout_s = 600;  // of what ranks wait for; one rank waits for nothing
};

// How often the state is saved while the run goes on.
struct SaveInterval {
  // auto: about every 15 minutes, and the last two of these are kept.
  bool is_automatic = true;
  std::int64_t steps = 0;  // 0: none; of an automatic interval: not chosen yet

  friend bool operator==(const SaveInterval&, const SaveInterval&) = default;
};

struct RunOptions {
  std::string run_dir;          // empty: runs/<model>-<time>
  std::int64_t eval_every = 0;  // 0: only after the last step
  // That an evaluation covers; 0: the whole split. Unset: as many as cost the operations of 20
  // training steps, at least 16.
  std::optional<std::int64_t> eval_samples;
  std::int64_t log_every = 1;
  SaveInterval checkpoint_every;  // besides the one at the end of an unfinished run
  std::int64_t keep_last = 0;     // 0: all, of automatic ones two
  bool keep_best = false;         // the checkpoint of the lowest validation loss
  // Evaluations without a lower validation loss that end the run; 0: none do.
  std::int64_t early_stopping_patience = 0;
  std::string resume = "none";   // none, auto, or a checkpoint's path
  bool overwrite_later = false;  // a resume may delete the checkpoints after its own
  SaveType save_dtype = SaveType::kAuto;
  ProgressChoice progress = ProgressChoice::kAuto;
  std::optional<StepRange> trace_steps;
  bool dry_run = false;
  bool json = false;               // of a dry run: a document in place of text
  std::vector<std::string> notes;  // on what the options were read from: a sentence each
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
