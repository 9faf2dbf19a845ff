#include "runtime/engine/model_runtime.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "runtime/model/quantized_units.h"

namespace terrace {
namespace {

TensorSplit split_of(const ModelRuntimeOptions& options) {
  const StepRanks& ranks = options.ranks;
  return {ranks.shape.tensor, ranks.position.tensor,
          ranks.shape.tensor > 1 && options.sequence_parallel};
}

BaseStorage storage_of(const ModelRuntimeOptions& options) {
  return {options.base_quantization, static_cast<std::int64_t>(size_of(options.compute_type))};
}

// Returns the part of the model that a rank has.
std::vector<UnitLayout> layout_of(const ModelRuntimeOptions& options) {
  return parameter_layout(options.model, options.ranks.shape.data, split_of(options),
                          storage_of(options));
}

// Returns the name of a trained vector beside an adapter that ranks cannot have parts of: a bias of
// a linear layer, or a norm over a rank's columns. Empty if there is none.
std::string unshared_vector(const ModelConfig& model) {
  if (!model.adapter.is_there()) return "";
  for (const UnitLayout& unit : parameter_layout(model)) {
    for (const ParameterTensor& tensor : unit.tensors) {
      const bool is_bias =
          ParameterKind::kQueryBias <= tensor.kind && tensor.kind <= ParameterKind::kDownBias;
      const bool is_cut_norm = tensor.is_vector && tensor.cut != TensorCut::kReplicated;
      if (tensor.trainable && (is_bias || is_cut_norm)) return tensor.stored_name;
    }
  }
  return "";
}

// Throws ConfigError for a number of experts that no group can have.
void check_experts_per_group(const ModelRuntimeOptions& options) {
  const std::int64_t asked = options.experts_per_group;
  const std::int64_t experts = options.model.experts.count;
  if (asked == 0 || (0 < asked && asked <= experts)) return;
  const std::string_view name = options.placement.name_of_option(Option::kExpertsPerGroup);
  if (experts == 0) {
    throw ConfigError(
        fmt::format("{} {}: {} has no layers of experts", name, asked, options.model.name),
        "leave it out");
  }
  throw ConfigError(
      fmt::format("{} {}: a layer of {} has {} experts", name, asked, options.model.name, experts),
      fmt::format("give a number from 1 to {}", experts));
}

// Throws ConfigError where ranks cannot share the model in this way.
void check_split(const ModelRuntimeOptions& options) {
  const OptionNames names = options.placement.name_of_option;
  check_tensor_split(options.model, options.batch.rows(), split_of(options), names);
  check_quantized_parts(options.model, storage_of(options), split_of(options), names);
  if (options.model.adapter.has_magnitudes && options.ranks.shape.tensor > 1) {
    throw ConfigError(
        fmt::format("{} {}: an adapter with magnitudes (dora) is not built for ranks that share a "
                    "matrix",
                    names(Option::kTensorParallel), options.ranks.shape.tensor),
        "train an adapter of type lora, or share the work between data-parallel ranks or pipeline "
        "stages");
  }
  if (options.ranks.shape.tensor == 1) return;
  const std::string vector = unshared_vector(options.model);
  if (vector.empty()) return;
  throw ConfigError(fmt::format("{} {}: an adapter beside which {} trains is not built for ranks "
                                "that share a layer",
                                names(Option::kTensorParallel), options.ranks.shape.tensor, vector),
                    "leave its module frozen, or share the work between data-parallel ranks or "
                    "pipeline stages");
}

// Throws ConfigError where the adapter's dropout cannot be computed.
void check_adapter(const ModelRuntimeOptions& options) {
  const AdapterOptions& adapter = options.model.adapter;
  check_dropout(adapter, {.dropout = fmt::format("dropout {}", adapter.dropout),
                          .magnitudes = "magnitudes (dora)",
                          .remedy = "set model.adapter.dropout to 0"});
  if (adapter.dropout == 0 || options.batch.has_samples) return;
  throw ConfigError(
      fmt::format("dropout {} needs the numbers of the samples, which the batch does not have",
                  adapter.dropout),
      "set batch.has_samples, and number the samples in the list kSamples");
}

UnitCompute make_compute(const ModelRuntimeOptions& options, std::vector<UnitLayout> layout) {
  const KernelTable& kernels =
      options.backend != nullptr ? options.backend->kernels() : *cpu_lane_kernels().table;
  return UnitCompute(options.model, std::move(layout),
                     {.compute_type = options.compute_type,
                      .batch = options.batch,
                      .split = split_of(options),
                      .dropout_seed = options.dropout_seed,
                      .experts_per_group = experts_per_group_of(options)},
                     kernels);
}

// Returns the numbers that the user may lower. Tensor-parallel ranks that share the rows of a
// micro-batch need a multiple of their number. Sequences shorter than an eighth would make it
// another training.
std::vector<Reduction> reductions_of(const ModelRuntimeOptions& options) {
  const auto with = [&options](auto set) {
    return [&options, set](std::int64_t value) {
      ModelRuntimeOptions other = options;
      set(other, value);
      return step_model_of(other);
    };
  };
  const TensorSplit split = split_of(options);
  const std::int64_t sharing = split.shares_rows ? split.ranks : 1;
  const BatchShape& batch = options.batch;
  constexpr std::int64_t kLeastPart = 8;
  std::vector<Reduction> reductions = {
      {Option::kThreads, options.threads, 1, 1,
       with([](ModelRuntimeOptions& o, std::int64_t v) { o.threads = static_cast<int>(v); })},
      {Option::kMicroBatchSize, batch.sequences, sharing / std::gcd(sharing, batch.positions), 1,
       with([](ModelRuntimeOptions& o, std::int64_t v) { o.batch.sequences = v; })},
      {Option::kSequenceLength, batch.positions, sharing / std::gcd(sharing, batch.sequences),
       batch.positions / kLeastPart,
       with([](ModelRuntimeOptions& o, std::int64_t v) { o.batch.positions = v; })}};
  const std::int64_t experts = experts_per_group_of(options);
  if (experts > 1) {
    reductions.push_back(
        {Option::kExpertsPerGroup, experts, 1, 1,
         with([](ModelRuntimeOptions& o, std::int64_t v) { o.experts_per_group = v; })});
  }
  return reductions;
}

// Returns larger numbers of tensor-parallel ranks, as far as the model's heads can be divided.
std::vector<TensorDivision> tensor_divisions_of(const ModelRuntimeOptions& options) {
  std::vector<TensorDivision> divisions;
  constexpr int kRanksMost = 8;
  for (int ranks = 2 * options.ranks.shape.tensor; ranks <= kRanksMost; ranks *= 2) {
    ModelRuntimeOptions other = options;
    other.ranks.shape.tensor = ranks;
    try {
      check_split(other);
    } catch (const ConfigError&) {
      break;
    }
    divisions.push_back({ranks, [other] { return step_model_of(other); }});
  }
  return divisions;
}

std::string describe_request(const ModelRuntimeOptions& options) {
  const auto several = [](std::int64_t number, const char* ending) {
    return number == 1 ? "" : ending;
  };
  const std::int32_t micro_batches = options.placement.micro_batches;
  return fmt::format("{} in {}, {} micro-batch{} of {} x {} tokens, {} thread{}",
                     options.model.name, name_of(options.compute_type), micro_batches,
                     several(micro_batches, "es"), options.batch.sequences, options.batch.positions,
                     options.threads, several(options.threads, "s"));
}

// Returns the names of the budgets that are exceeded.
std::string budgets_over(const Ledger& ledger, OptionNames name_of_option) {
  std::string names;
  for (const Tier tier : kTiers) {
    if (ledger[tier].over_bytes() == 0) continue;
    names += names.empty() ? "" : " and ";
    names += name_of_option(budget_option(tier));
  }
  return names;
}

}  // namespace

// Takes as many experts as leave the group, with its gradient if it has one, an eighth of the
// memory that units compute in. The rest is for the groups that are on their way and for everything
// else in a step. Halving the number keeps groups about equal.
std::int64_t experts_per_group_of(const ModelRuntimeOptions& options) {
  constexpr std::size_t kShare = 8;
  const ModelConfig& model = options.model;
  std::int64_t experts = model.experts.count;
  if (experts == 0 || options.experts_per_group > 0) return options.experts_per_group;
  const Tier compute = options.placement.unified ? Tier::kHost : Tier::kDevice;
  const auto& budget = options.budgets.at(static_cast<std::size_t>(compute));
  if (!budget.has_value()) return experts;
  constexpr std::int64_t kMatrices = 3;  // gate, up and down
  const MeshShape& shape = options.ranks.shape;
  const std::int64_t elements = padded_elements(
      kMatrices * model.width * model.experts.intermediate / shape.tensor, shape.data);
  // An adapter leaves the experts frozen. Quantised ones are dequantised, one matrix at a time.
  const std::size_t of_gradient = model.adapter.is_there() ? 0 : sizeof(float);
  const std::size_t bytes_of_expert =
      static_cast<std::size_t>(elements) * (size_of(options.compute_type) + of_gradient);
  while (experts > 1 && static_cast<std::size_t>(experts) * bytes_of_expert > *budget / kShare) {
    experts = (experts + 1) / 2;
  }
  return experts;
}

StepModel step_model_of(const ModelRuntimeOptions& options) {
  check_split(options);
  check_experts_per_group(options);
  const UnitCompute compute = unit_compute_of(options);
  return step_model_of(compute.model(options.placement.micro_batches, options.threads), options);
}

TierPlan plan_model(const ModelRuntimeOptions& options) {
  check_split(options);  // what follows divides by the parts
  check_experts_per_group(options);
  check_adapter(options);
  TierRuntimeOptions described = options;
  described.placement.asked = describe_request(options);
  described.placement.reductions = reductions_of(options);
  described.placement.tensor_divisions = tensor_divisions_of(options);
  TierPlan plan = plan_step_model(step_model_of(options), described);
  if (!fits(plan.ledger)) {
    throw OutOfMemory(
        "evaluation does not fit beside the training state: " + describe_shortfall(plan.ledger),
        fmt::format("raise {}{}, or train without validation ({})",
                    budgets_over(plan.ledger, options.placement.name_of_option),
                    options.placement.host_capacity.beyond(plan.ledger[Tier::kHost].peak_bytes),
                    options.placement.name_of_option(Option::kNoEvaluation)));
  }
  return plan;
}

PlanMemory memory_of_plan(const TierPlan& plan) {
  // Measured with 28,000 ops: 1.1 KiB each.
  constexpr std::size_t kProgramBytesPerOp = 1536;
  const std::size_t ops = op_count(plan.training.program) + op_count(plan.evaluation);
  const bool has_drive = plan.ledger[Tier::kNvme].peak_bytes > 0;
  return {arena_bytes(plan, Tier::kDevice), host_arena_bytes(plan) + 2 * step_input_bytes(plan),
          kProgramBytesPerOp * ops, HomeAccess::buffer_bytes(has_drive)};
}

ModelRuntimeOptions options_of_stage(ModelRuntimeOptions options, int stage) {
  options.ranks.position.pipeline = stage;
  if (options.stage_limits.empty()) return options;
  const StageLimits& limits = options.stage_limits.at(static_cast<std::size_t>(stage));
  options.budgets = limits.budgets;
  options.threads = limits.threads;
  options.update_threads = limits.update_threads;
  return options;
}

void check_stages(const ModelRuntimeOptions& options, const TierPlan& plan) {
  const auto plan_of = [&](int stage) { return plan_model(options_of_stage(options, stage)); };
  const std::vector<std::string> problems = problems_of_stages(options.ranks, plan, plan_of);
  if (!problems.empty()) TERRACE_CHECK_EQ(problems.front(), std::string());
}

UnitCompute unit_compute_of(const ModelRuntimeOptions& options) {
  return make_compute(options, layout_of(options));
}

ModelRuntime::ModelRuntime(const ModelRuntimeOptions& options, const TierPlan& plan, Log& log)
    : options_(options),
      layout_(layout_of(options)),
      compute_(make_compute(options, layout_)),
      tiers_(options, plan, compute_, log),
      state_(tiers_.state(), layout_) {
  // Loads what attention needs now, so that no rank waits in a step for another that still loads
  // it.
  compute_.prepare(tiers_.kernel_context());
  const std::vector<float> tables = compute_.constants();
  tiers_.set_constants(std::as_bytes(std::span(tables)));
}

void ModelRuntime::fill_state(const StateSource& source, FillProgress progress) {
  const std::vector<UnitLayout> whole = parameter_layout(options_.model);
  const TensorPartState parts(source, whole);
  const bool is_part = options_.ranks.shape.tensor > 1 || options_.base_quantization;
  const StateSource& from = is_part ? static_cast<const StateSource&>(parts) : source;
  const std::vector<ParameterGroup>& groups = tiers_.model().groups;
  const auto read = [&](StateField field, std::int32_t group, std::int64_t begin,
                        std::span<float> out) {
    const ParameterGroup& of = groups.at(static_cast<std::size_t>(group));
    from.read(field, layout_.at(static_cast<std::size_t>(of.unit)), of.first_element + begin, out);
  };
  const BaseStorage storage = storage_of(options_);
  QuantizedUnits quantized(source, whole, layout_, storage.element_bytes);
  const auto read_bytes = [&](std::int32_t group, std::int64_t begin, std::span<std::byte> out,
                              WorkerArena& workers) {
    const ParameterGroup& of = groups.at(static_cast<std::size_t>(group));
    quantized.read(of.unit, of.first_element + begin, out, workers);
  };
  const ByteSource bytes(read_bytes);
  const SlotStart slots = source.has_slots() ? SlotStart::kFromSource : SlotStart::kZero;
  tiers_.fill_state(FillSource{read, storage.form ? &bytes : nullptr, slots}, progress);
}

void ModelRuntime::begin_step(const StepBatch& batch) {
  tiers_.begin_step({.step = batch.step,
                     .input = std::as_bytes(batch.tokens),
                     .loss_terms = batch.target_tokens,
                     .learning_rate = batch.learning_rate,
                     .micro_batches = batch.micro_batches,
                     .small_batch_terms = batch.small_batch_tokens});
}

}  // namespace terrace
