#include "runtime/train/train_setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "memory/cuda/cuda_device.h"
#include "runtime/config/accumulation_schedule.h"
#include "runtime/model/rope_rows.h"
#include "runtime/train/data_defaults.h"
#include "runtime/train/islands.h"
#include "runtime/train/option_flags.h"

namespace terrace {
namespace {

// The share of the host's free memory that the arenas get by default: the rest is for code, caches
// of kernels and the page cache.
constexpr double kDefaultShare = 0.8;

// Returns how many addresses a rank's threads reserve: each has a stack, and malloc gives each a
// part of its own.
std::size_t addresses_of(const ThreadPlan& threads) {
  constexpr int kLanes = 4;  // the lanes that every run starts
  constexpr std::size_t kMallocBytes = 64 * kMiB;
  return static_cast<std::size_t>(threads.compute + threads.update + kLanes) *
         (thread_stack_bytes() + kMallocBytes);
}

// Returns the bytes of addresses that a rank has left beside its threads. Each process has its own
// limit on addresses, which its ranks share. If little is left, malloc gives threads less, and the
// budget gets a quarter.
std::size_t addresses_for_rank(const MachineShare& machine) {
  const AddressSpace& addresses = machine.limits.addresses;
  if (!addresses.limit_bytes) return addresses.left_bytes();
  const std::size_t left =
      addresses.left_bytes() / static_cast<std::size_t>(machine.ranks_in_process);
  return std::max(left - std::min(left, addresses_of(machine.threads)), left / 4);
}

// Returns the memory that is free on this host for one of the ranks that share it.
std::size_t free_for_rank(const MachineShare& machine) {
  const std::size_t by_host =
      machine.limits.usable_by_host_bytes() / static_cast<std::size_t>(machine.ranks_on_host);
  return std::min(by_host, addresses_for_rank(machine));
}

}  // namespace

std::optional<Tier> tier_of(Placement placement) {
  switch (placement) {
    case Placement::kAuto:
      return std::nullopt;
    case Placement::kDevice:
      return Tier::kDevice;
    case Placement::kHost:
      return Tier::kHost;
    case Placement::kNvme:
      return Tier::kNvme;
  }
  return std::nullopt;
}

TierBudgets budgets_for(const TierOptions& tiers, const MachineShare& machine) {
  TierBudgets budgets;
  std::size_t device = tiers.device_memory.value_or(0);
  if (tiers.device_memory.has_value()) budgets[static_cast<std::size_t>(Tier::kDevice)] = device;
  if (machine.gpu.has_value()) {
    budgets[static_cast<std::size_t>(Tier::kDevice)] =
        tiers.device_memory.value_or(machine.gpu->capacity_bytes);
    device = 0;  // of the host's memory: none
  }
  const auto share =
      static_cast<std::size_t>(kDefaultShare * static_cast<double>(free_for_rank(machine)));
  budgets[static_cast<std::size_t>(Tier::kHost)] =
      tiers.host_memory.value_or(share > device ? share - device : 0);
  // Blocks are striped over the directories in equal parts, so the smallest directory decides.
  std::size_t smallest = SIZE_MAX;
  for (const NvmeDirectory& directory : tiers.nvme) {
    if (!directory.budget_bytes.has_value()) return budgets;
    smallest = std::min(smallest, *directory.budget_bytes);
  }
  if (!tiers.nvme.empty())
    budgets[static_cast<std::size_t>(Tier::kNvme)] = smallest * tiers.nvme.size();
  return budgets;
}

namespace {

// Returns the most memory that a budget can name for one of the ranks of this host.
HostCapacity host_capacity_of(const MachineShare& machine) {
  const HostLimits& limits = machine.limits;
  const bool is_cgroup = limits.whole_bytes() < limits.total_bytes;
  HostCapacity capacity = {limits.whole_bytes() / static_cast<std::size_t>(machine.ranks_on_host),
                           is_cgroup ? "the cgroup's memory limit" : "the memory of this machine",
                           is_cgroup ? "raise that limit first (for a container: its memory)"
                                     : "use a machine with more memory, or change something else"};
  const std::size_t addresses = addresses_for_rank(machine);
  if (addresses >= capacity.bytes) return capacity;
  return {addresses, "the address-space limit (ulimit -v)", "raise that limit first"};
}

PlacementRequest placement_for(const TrainOptions& options, const MachineShare& machine) {
  const bool has_gpu = machine.gpu.has_value();
  PlacementRequest request;
  request.host_capacity = host_capacity_of(machine);
  request.name_of_option = flag_of_option;
  const TierOptions& tiers = options.tiers;
  for (const StateClassInfo& info : kStateClasses) {
    request.homes[info.state] = tier_of(tiers.places[info.state]);
  }
  if (options.step.recompute != RecomputeChoice::kAuto) {
    request.recompute = options.step.recompute == RecomputeChoice::kFull;
  }
  if (options.step.micro_batch_order != OrderChoice::kAuto) {
    request.order = options.step.micro_batch_order == OrderChoice::kLayerMajor
                        ? MicroBatchOrder::kLayerMajor
                        : MicroBatchOrder::kMicroBatchMajor;
  }
  request.micro_batches = static_cast<std::int32_t>(options.batch.gradient_accumulation_steps);
  request.reduces_micro_batches = options.step.gradient_reduction == ReductionChoice::kMicroBatch;
  request.lookahead = tiers.lookahead;
  request.unified = !tiers.device_memory.has_value() && !has_gpu;
  request.has_nvme = !tiers.nvme.empty();
  return request;
}

std::int32_t virtual_stages_for(const StepOptions& step) {
  const bool interleaved = step.pipeline_schedule == PipelineSchedule::kInterleaved;
  return step.virtual_stages.value_or(interleaved ? 2 : 1);
}

void check_pipeline(const TrainOptions& options) {
  const StepOptions& step = options.step;
  const bool interleaved = step.pipeline_schedule == PipelineSchedule::kInterleaved;
  if (interleaved && step.pipeline_parallel == 1) {
    throw ConfigError("--pipeline-schedule interleaved without stages to interleave",
                      "give --pipeline-parallel N, or leave --pipeline-schedule out");
  }
  check_pipeline_shape({step.pipeline_schedule, step.pipeline_parallel,
                        static_cast<int>(options.batch.gradient_accumulation_steps),
                        virtual_stages_for(step)});
  const std::size_t speeds = step.stage_speeds.size();
  if (speeds > 0 && std::cmp_not_equal(speeds, step.pipeline_parallel)) {
    throw ConfigError(fmt::format("--stage-speeds has {} numbers, but --pipeline-parallel is {}",
                                  speeds, step.pipeline_parallel),
                      "give one number for each pipeline stage, or leave --stage-speeds out");
  }
}

}  // namespace

DType compute_type_for(Precision precision) {
  switch (precision) {
    case Precision::kBf16:
      return DType::kBF16;
    case Precision::kFp32:
      return DType::kF32;
    case Precision::kFp16:
      return DType::kF16;
  }
  return DType::kBF16;
}

std::size_t budgeted_memory(const TierOptions& tiers, const MachineShare& machine) {
  const TierBudgets budgets = budgets_for(tiers, machine);
  const std::size_t host = budgets[static_cast<std::size_t>(Tier::kHost)].value_or(0);
  if (machine.gpu.has_value()) return host;
  return host + budgets[static_cast<std::size_t>(Tier::kDevice)].value_or(0);
}

std::size_t budgets_on_host(const TierOptions& tiers, const MachineShare& machine,
                            const RankGroup& ranks) {
  constexpr double kMost = 9e18;  // less than the largest std::size_t
  const auto own = static_cast<double>(budgeted_memory(tiers, machine));
  return static_cast<std::size_t>(std::min(kMost, ranks.sum_on_host(own, machine.ranks_on_host)));
}

void check_budgets(const TierOptions& tiers, const MachineShare& machine, std::size_t on_host) {
  const auto ranks = static_cast<std::size_t>(machine.ranks_on_host);
  const TierBudgets budgets = budgets_for(tiers, machine);
  const std::size_t device = budgets[static_cast<std::size_t>(Tier::kDevice)].value_or(0);
  const std::size_t host = budgets[static_cast<std::size_t>(Tier::kHost)].value_or(0);
  const std::size_t whole = machine.limits.whole_bytes();
  if (machine.gpu.has_value() && device > machine.gpu->capacity_bytes) {
    throw OutOfMemory(fmt::format("--device-memory {} is more than the {} that GPU {} can give",
                                  format_size(device), format_size(machine.gpu->capacity_bytes),
                                  machine.gpu->ordinal),
                      "lower it, or end other programs that use the GPU");
  }
  if (on_host <= whole) return;
  const std::string more = fmt::format("more than the {} of this host", format_size(whole));
  if (on_host != ranks * budgeted_memory(tiers, machine)) {
    throw OutOfMemory(fmt::format("the budgets of the {} ranks on this host, {} together, are {}",
                                  ranks, format_size(on_host), more),
                      "lower --host-memory or --device-memory of some of these ranks");
  }
  const std::string each = ranks > 1 ? fmt::format(" for each of {} ranks", ranks) : std::string();
  if (machine.gpu.has_value()) {
    throw OutOfMemory(fmt::format("--host-memory {}{} is {}", format_size(host), each, more),
                      "lower it");
  }
  const std::string asked =
      device == 0 ? fmt::format("--host-memory {}{} is", format_size(host), each)
      : host == 0 ? fmt::format("--device-memory {}{} is", format_size(device), each)
                  : fmt::format("--device-memory {} and --host-memory {}{} are",
                                format_size(device), format_size(host), each);
  throw OutOfMemory(fmt::format("{} {}", asked, more),
                    "lower it: on the CPU device all of it is memory of this host");
}

void check_drives(const TierOptions& tiers) {
  for (const NvmeDirectory& directory : tiers.nvme) {
    std::error_code problem;
    if (std::filesystem::is_directory(directory.path, problem)) continue;
    throw ConfigError(fmt::format("--nvme {}: {}", directory.path,
                                  problem ? problem.message() : "not a directory"),
                      "name an existing directory on the drive for the offloaded state");
  }
}

std::int64_t sequence_length_for(const TrainOptions& options, const ModelConfig& model) {
  const std::int64_t length = options.batch.sequence_length;
  if (length > model.positions && model.has_position_embedding) {
    throw ConfigError(
        fmt::format("--sequence-length {} is more than the {} positions of {}, which has a learned "
                    "embedding for each position",
                    length, model.positions, model.name),
        "lower it");
  }
  return length == 0 ? model.positions : length;
}

WeightTypes result_types_for(const TrainOptions& options, const std::optional<WeightTypes>& loaded,
                             DType compute_type) {
  switch (options.run.save_dtype) {
    case SaveType::kAuto:
      return loaded.value_or(WeightTypes{.usual = compute_type});
    case SaveType::kFp32:
      return {.usual = DType::kF32};
    case SaveType::kBf16:
      return {.usual = DType::kBF16};
    case SaveType::kFp16:
      return {.usual = DType::kF16};
  }
  return {};
}

std::int32_t zero_stage_for(const TrainOptions& options, const MeshShape& shape) {
  return options.step.zero_stage.value_or(shape.data > 1 ? 1 : 0);
}

BatchShape batch_for(const TrainOptions& options, const ModelConfig& model) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const std::int64_t length = sequence_length_for(options, model);
  if (options.batch.micro_batch_size > kMost / length) {
    throw OutOfMemory(fmt::format("a micro-batch of {} samples of {} tokens is too large: at most "
                                  "{} tokens can be computed at once",
                                  options.batch.micro_batch_size, length, kMost),
                      length > kMost ? "lower --sequence-length"
                                     : "lower --micro-batch-size, and raise "
                                       "--gradient-accumulation-steps instead");
  }
  return {.sequences = options.batch.micro_batch_size,
          .positions = length,
          .has_samples = model.adapter.dropout > 0,
          .row_angles = row_angles(model, length)};
}

namespace {

void check_gradient_reduction(const TrainOptions& options, const MeshShape& shape) {
  if (options.step.gradient_reduction == ReductionChoice::kStep) return;
  const std::string flag = "--gradient-reduction micro-batch";
  if (shape.data == 1) {
    throw ConfigError(flag + " with one data-parallel rank: there is nothing to reduce",
                      "leave it out, or train with more ranks");
  }
  if (zero_stage_for(options, shape) < 2) {
    throw ConfigError(fmt::format("{} with ZeRO stage {}: at this stage every rank keeps whole "
                                  "gradients",
                                  flag, zero_stage_for(options, shape)),
                      "use --zero-stage 2 or 3, or leave it out");
  }
  if (options.step.micro_batch_order == OrderChoice::kLayerMajor) {
    throw ConfigError(flag +
                          " with --micro-batch-order layer-major, which holds the whole gradient "
                          "of only one unit at a time",
                      "give only one of them");
  }
  if (options.optimizer.gradient_dtype == GradientChoice::kBf16) {
    throw ConfigError(flag +
                          " with --gradient-dtype bf16 would round the gradient of every "
                          "micro-batch",
                      "give only one of them");
  }
}

}  // namespace

CommunicatorOptions communicator_options_for(const RankOptions& options) {
  CommunicatorOptions made;
  made.timeout = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(options.collective_timeout_s));
  made.hierarchical = options.hierarchical_collectives;
  return made;
}

MeshShape mesh_for(const TrainOptions& options, int ranks, int ranks_on_host) {
  check_pipeline(options);
  const MeshShape shape =
      mesh_of(ranks, options.step.tensor_parallel, options.step.pipeline_parallel);
  if (shape.pipeline > 1 && options.step.micro_batch_order == OrderChoice::kLayerMajor) {
    throw ConfigError(
        "--micro-batch-order layer-major with --pipeline-parallel: a stage must pass a micro-batch "
        "on before it begins the next one",
        "leave --micro-batch-order out");
  }
  check_gradient_reduction(options, shape);
  return mesh_in_islands(shape, options, ranks_on_host);
}

MeshShape mesh_for(const TrainOptions& options, const LaunchedRanks& ranks) {
  return mesh_for(options, ranks.count(), ranks_of_each_host(ranks, options));
}

ModelRuntimeOptions engine_options_for(const TrainOptions& options, const ModelConfig& model,
                                       const MachineShare& machine) {
  if (!options.run.dry_run) check_drives(options.tiers);
  ModelRuntimeOptions engine;
  engine.model = model;
  engine.zero_partition = options.step.zero_partition;
  engine.wire = {.gradients = options.step.gradient_wire,
                 .parameters = options.step.parameter_wire,
                 .keeps_errors = options.step.keeps_errors()};
  engine.batch = batch_for(options, model);
  engine.compute_type = compute_type_for(options.precision);
  engine.base_quantization = options.model.base_quantization;
  engine.experts_per_group = options.step.experts_per_group;
  engine.gradient_type =
      options.optimizer.gradient_dtype == GradientChoice::kBf16 ? DType::kBF16 : DType::kF32;
  engine.placement = placement_for(options, machine);
  if (machine.gpu.has_value()) {
    engine.placement.gpu = GpuSetting{.link_bytes_per_s = machine.gpu->link_bytes_per_s};
  }
  engine.budgets = budgets_for(options.tiers, machine);
  const OptimizerFlags& flags = options.optimizer;
  engine.optimizer.max_grad_norm = flags.max_grad_norm;
  engine.optimizer.rule = flags.rule;
  engine.optimizer.numbers = flags.numbers();
  engine.optimizer.slot_form = flags.optimizer_state_dtype;
  engine.optimizer.seed = options.model.seed;
  engine.dropout_seed = options.model.seed;
  engine.optimizer.splits_bf16_masters = flags.master_weights != MasterChoice::kFp32;
  engine.nvme.directories = options.tiers.nvme;
  engine.nvme.engine = options.tiers.io_engine;
  engine.nvme.named_files = false;
  engine.measures_gradient_noise = options.batch.measures_gradient_noise;
  engine.evaluates = options.data.validation_fraction > 0 || !options.data.validation_data.empty();
  const ThreadPlan& threads = machine.threads;
  engine.threads = threads.compute;
  engine.update_threads = threads.update;
  engine.cpus = threads.cpus;
  engine.numa_nodes =
      arena_nodes(machine.gpu, machine.topology,
                  engine.budgets[static_cast<std::size_t>(Tier::kHost)].value_or(0), threads.nodes);
  engine.pipeline_schedule = options.step.pipeline_schedule;
  engine.virtual_stages = virtual_stages_for(options.step);
  engine.stage_speeds = options.step.stage_speeds;
  engine.sequence_parallel = options.step.sequence_parallel.value_or(true);
  return engine;
}

DatasetOptions dataset_options_for(const TrainOptions& options, const ModelConfig& model,
                                   std::int64_t sequence_length) {
  DatasetOptions data;
  data.data = options.data.data;
  data.validation_data = options.data.validation_data;
  data.format = parse_data_format(options.data.data_format);
  data.validation_fraction = options.data.validation_fraction;
  data.vocabulary = model.vocabulary;
  data.sequence_length = sequence_length;
  data.longest_chosen_length = std::min(model.positions, kLongestChosenLength);
  data.longest_window_length = model.positions;
  data.seed = options.model.seed;
  if (!options.data.packing.empty()) data.packing = parse_packing(options.data.packing);
  data.uses_mask = options.data.loss_on == "completion";
  data.weights = options.data.data_weights;
  return data;
}

std::int64_t total_steps_for(const TrainOptions& options, const Dataset& data, std::int64_t samples,
                             const CheckpointProgress& done) {
  const BatchOptions& batch = options.batch;
  if (batch.max_steps > 0) return batch.max_steps;
  const double windows =
      batch.num_train_epochs.value_or(1.0) * static_cast<double>(data.samples_per_epoch());
  const double micro_batches = std::ceil(windows / static_cast<double>(samples));
  constexpr double kMost = 9e15;  // whole numbers are exact up to here
  if (micro_batches > kMost) {
    throw ConfigError(fmt::format("--num-train-epochs {} would be {:.3g} micro-batches",
                                  *batch.num_train_epochs, micro_batches),
                      "train for fewer epochs");
  }
  const std::int64_t until_now = micro_batches_until(batch, done.step);
  if (done.samples == until_now * samples) {
    const auto all = static_cast<std::int64_t>(micro_batches);
    return std::max<std::int64_t>(1, step_of_micro_batches(batch, all));
  }
  // Steps until now had other samples. The rest is counted from here on.
  const auto left = static_cast<std::int64_t>(std::ceil(windows)) - done.samples;
  const std::int64_t more = (std::max<std::int64_t>(left, 0) + samples - 1) / samples;
  return std::max(done.step, step_of_micro_batches(batch, until_now + more));
}

LrSchedule schedule_for(const TrainOptions& options, std::int64_t total_steps) {
  LrSchedule schedule;
  schedule.type = options.optimizer.lr_scheduler_type;
  schedule.learning_rate = options.optimizer.learning_rate;
  schedule.min_learning_rate =
      options.optimizer.min_learning_rate.value_or(options.optimizer.learning_rate / 10);
  const double ratio = options.optimizer.warmup_ratio;
  schedule.warmup_steps =
      ratio > 0 ? static_cast<std::int64_t>(std::ceil(ratio * static_cast<double>(total_steps)))
                : options.optimizer.warmup_steps;
  schedule.total_steps = total_steps;
  return schedule;
}

namespace {

// Gives a rank the number of threads that agree_on_limits() would find among all ranks of the host.
// For a dry run of local ranks, in which only some of these ranks exist.
void take_fewest_threads(const TrainOptions& options, int ranks_on_host, MachineShare& machine) {
  for (int index = 0; index < ranks_on_host; ++index) {
    const ThreadPlan threads = plan_threads(options.tiers.threads, machine.limits, machine.topology,
                                            {ranks_on_host, index});
    machine.threads.compute = std::min(machine.threads.compute, threads.compute);
    machine.threads.update = std::min(machine.threads.update, threads.update);
  }
}

}  // namespace

MachineShare machine_share(const TrainOptions& options, const LaunchedRanks& ranks) {
  MachineShare machine;
  machine.limits = read_host_limits();
  machine.topology = read_topology();
  machine.threads =
      plan_threads(options.tiers.threads, machine.limits, machine.topology, ranks.on_host);
  if (ranks.stands_for > 1) take_fewest_threads(options, ranks.on_host.count, machine);
  machine.ranks_on_host = ranks.on_host.count;
  machine.is_first_on_host = ranks.on_host.index == 0;
  if (ranks.plans != nullptr) machine.ranks_in_process = ranks.count();
  machine.gpu = choose_gpu(options.tiers.device, ranks.on_host, ranks.count());
  // With a GPU, updates have the processors to themselves.
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

}  // namespace terrace
