#include "runtime/engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "runtime/engine/connect_ranks.h"
#include "runtime/step/verify.h"
#include "runtime/step/verify_stages.h"

namespace terrace {
namespace {

TensorSplit split_of(const EngineOptions& options) {
  const StepRanks& ranks = options.ranks;
  return {ranks.shape.tensor, ranks.position.tensor,
          ranks.shape.tensor > 1 && options.sequence_parallel};
}

// What a rank has of the model.
std::vector<UnitLayout> layout_of(const EngineOptions& options) {
  return parameter_layout(options.model, options.ranks.shape.data, split_of(options));
}

UnitCompute make_compute(const EngineOptions& options, std::vector<UnitLayout> layout) {
  const KernelTable& kernels =
      options.backend != nullptr ? options.backend->kernels() : *cpu_lane_kernels().table;
  return UnitCompute(options.model, std::move(layout),
                     {options.compute_type, options.batch, split_of(options)}, kernels);
}

std::unique_ptr<ComputeDevice> make_device(const EngineOptions& options,
                                           std::size_t capacity_bytes) {
  return options.backend != nullptr ? options.backend->make(capacity_bytes)
                                    : make_cpu_compute_device(capacity_bytes);
}

StateFormat state_format_of(const EngineOptions& options) {
  StateFormat format;
  const bool splits = options.compute_type == DType::kBF16 && options.optimizer.splits_bf16_masters;
  format.master = options.compute_type == DType::kF32 ? MasterForm::kParameter
                  : splits                            ? MasterForm::kSplit
                                                      : MasterForm::kFp32;
  format.slot_form = options.optimizer.slot_form;
  format.slot_count = options.optimizer.rule->slots.size();
  return format;
}

ZeroSharding sharding_of(const EngineOptions& options) {
  return {options.zero_stage, options.ranks.shape.data, options.ranks.position.data};
}

// Pieces of about equal work.
PipelineCut cut_of(const EngineOptions& options, const StepModel& model) {
  PipelineCut cut;
  cut.stages = options.ranks.shape.pipeline;
  cut.stage = options.ranks.position.pipeline;
  if (cut.stages == 1) return cut;
  cut.virtual_stages = options.virtual_stages;
  std::vector<double> costs;
  for (const UnitModel& unit : model.units) {
    costs.push_back(unit.forward_flops + unit.backward_flops);
  }
  cut.first_units = balance_stages(costs, cut.pieces());
  return cut;
}

// The largest chunk that all ranks have as many whole blocks of.
std::int64_t chunk_elements_for(const EngineOptions& options, std::int32_t ranks) {
  const std::int64_t grain = ranks * kBlockElements;
  const std::int64_t elements = options.chunk_elements / grain * grain;
  if (elements == 0) {
    throw ConfigError(fmt::format("{} data-parallel ranks are more than the {} blocks of a chunk",
                                  ranks, options.chunk_elements / kBlockElements),
                      "train with fewer ranks");
  }
  return elements;
}

// What the user may lower. Tensor-parallel ranks that share the rows of a micro-batch need a
// multiple of their number. Sequences of less than an eighth would be another training.
std::vector<Reduction> reductions_of(const EngineOptions& options) {
  const auto with = [&options](auto set) {
    return [&options, set](std::int64_t value) {
      EngineOptions other = options;
      set(other, value);
      return step_model_of(other);
    };
  };
  const TensorSplit split = split_of(options);
  const std::int64_t sharing = split.shares_rows ? split.ranks : 1;
  const BatchShape& batch = options.batch;
  constexpr std::int64_t kLeastPart = 8;
  return {{Option::kThreads, options.threads, 1, 1,
           with([](EngineOptions& o, std::int64_t v) { o.threads = static_cast<int>(v); })},
          {Option::kMicroBatchSize, batch.sequences, sharing / std::gcd(sharing, batch.positions),
           1, with([](EngineOptions& o, std::int64_t v) { o.batch.sequences = v; })},
          {Option::kSequenceLength, batch.positions, sharing / std::gcd(sharing, batch.sequences),
           batch.positions / kLeastPart,
           with([](EngineOptions& o, std::int64_t v) { o.batch.positions = v; })}};
}

// As far as the model's heads can be divided.
std::vector<TensorDivision> tensor_divisions_of(const EngineOptions& options) {
  std::vector<TensorDivision> divisions;
  constexpr int kRanksMost = 8;
  for (int ranks = 2 * options.ranks.shape.tensor; ranks <= kRanksMost; ranks *= 2) {
    EngineOptions other = options;
    other.ranks.shape.tensor = ranks;
    try {
      check_tensor_split(other.model, other.batch.rows(), split_of(other));
    } catch (const ConfigError&) {
      break;
    }
    divisions.push_back({ranks, [other] { return step_model_of(other); }});
  }
  return divisions;
}

std::string describe_request(const EngineOptions& options) {
  const auto several = [](std::int64_t number, const char* ending) {
    return number == 1 ? "" : ending;
  };
  const std::int32_t micro_batches = options.placement.micro_batches;
  return fmt::format("{} in {}, {} micro-batch{} of {} x {} tokens, {} thread{}",
                     options.model.name, name_of(options.compute_type), micro_batches,
                     several(micro_batches, "es"), options.batch.sequences, options.batch.positions,
                     options.threads, several(options.threads, "s"));
}

// The names of the budgets that are exceeded.
std::string budgets_over(const Ledger& ledger, OptionNames name_of_option) {
  std::string names;
  for (const Tier tier : kTiers) {
    if (ledger[tier].over_bytes() == 0) continue;
    names += names.empty() ? "" : " and ";
    names += name_of_option(budget_option(tier));
  }
  return names;
}

std::size_t arena_bytes(const EnginePlan& plan, Tier tier) {
  return std::max(plan.training.program.use_of(tier).packed_bytes,
                  plan.evaluation.use_of(tier).packed_bytes);
}

std::size_t host_arena_bytes(const EnginePlan& plan) {
  constexpr std::size_t kLeast = 4096;
  return std::max(arena_bytes(plan, Tier::kHost), kLeast);
}

std::size_t step_tokens_bytes(const EnginePlan& plan) {
  return plan.model.tokens_bytes * static_cast<std::size_t>(plan.training.program.micro_batches);
}

Access whole(const Program& program, BufferId buffer) {
  return {Role::kSource, buffer, 0, program.buffers.at(buffer).size_bytes};
}

}  // namespace

StepModel step_model_of(const EngineOptions& options) {
  const UnitCompute compute = make_compute(options, layout_of(options));
  StepModel model(compute.model(options.placement.micro_batches, options.threads));
  model.zero = sharding_of(options);
  model.pipeline = cut_of(options, model);
  model.updates_meet_on_host = exchange_of(options.backend) != nullptr;
  model.chunk_elements = chunk_elements_for(options, model.zero.ranks);
  model.state_format = state_format_of(options);
  model.gradient_type = options.gradient_type;
  model.scales_loss = options.compute_type == DType::kF16;
  return model;
}

EnginePlan plan_engine(const EngineOptions& options) {
  check_tensor_split(options.model, options.batch.rows(), split_of(options),
                     options.placement.name_of_option);
  EnginePlan plan;
  plan.model = step_model_of(options);
  PlacementRequest placement = options.placement;
  placement.asked = describe_request(options);
  placement.reductions = reductions_of(options);
  placement.tensor_divisions = tensor_divisions_of(options);
  placement.pipeline_schedule = options.pipeline_schedule;
  placement.updates_wait_for_norm = options.optimizer.max_grad_norm > 0 || plan.model.scales_loss;
  // A backend with memory of its own is a GPU's.
  if (options.backend != nullptr && !placement.unified) {
    if (!placement.gpu.has_value()) placement.gpu.emplace();
    placement.gpu->update_threads = options.update_threads;
  }
  plan.training = plan_step(plan.model, placement, options.budgets, options.shared_plans);
  plan.ledger = plan.training.ledger;
  if (!options.evaluates) return plan;
  StepPolicy evaluation = plan.training.policy;
  evaluation.has_backward = false;
  plan.evaluation = compile_step(plan.model, evaluation, options.budgets, &plan.training.program);
  if (!placement.is_trial) {
    const std::vector<std::string> problems = verify(plan.evaluation);
    if (!problems.empty()) TERRACE_CHECK_EQ(problems.front(), std::string());
  }
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    plan.ledger[tier].peak_bytes = arena_bytes(plan, tier);
  }
  if (!fits(plan.ledger)) {
    throw OutOfMemory(
        "evaluation does not fit beside the training state: " + describe_shortfall(plan.ledger),
        fmt::format("raise {}, or train without validation ({})",
                    budgets_over(plan.ledger, placement.name_of_option),
                    placement.name_of_option(Option::kNoEvaluation)));
  }
  return plan;
}

EngineMemory engine_memory(const EnginePlan& plan) {
  // Measured with 28,000 ops: 1.1 KiB each.
  constexpr std::size_t kProgramBytesPerOp = 1536;
  const std::size_t ops = plan.training.program.ops.size() + plan.evaluation.ops.size();
  return {arena_bytes(plan, Tier::kDevice), host_arena_bytes(plan) + 2 * step_tokens_bytes(plan),
          kProgramBytesPerOp * ops};
}

void check_stages(const EngineOptions& options, const EnginePlan& plan) {
  const int stages = options.ranks.shape.pipeline;
  if (stages == 1) return;
  std::vector<EnginePlan> others(static_cast<std::size_t>(stages));
  std::vector<const Program*> training;
  std::vector<const Program*> evaluation;
  for (int stage = 0; stage < stages; ++stage) {
    const EnginePlan* of_stage = &plan;
    if (stage != options.ranks.position.pipeline) {
      EngineOptions other = options;
      other.ranks.position.pipeline = stage;
      EnginePlan& made = others.at(static_cast<std::size_t>(stage));
      made = plan_engine(other);
      of_stage = &made;
    }
    training.push_back(&of_stage->training.program);
    evaluation.push_back(&of_stage->evaluation);
  }
  for (const auto* programs : {&training, &evaluation}) {
    const std::vector<std::string> problems = verify_stages(*programs);
    if (!problems.empty()) TERRACE_CHECK_EQ(problems.front(), std::string());
  }
}

// Tokens and results of one of the two runs that may be in flight.
struct Engine::Slot {
  std::span<std::byte> tokens;
  StepResult result;
};

Engine::Engine(const EngineOptions& options, const EnginePlan& plan, Log& log)
    : options_(options),
      plan_(plan),
      layout_(layout_of(options)),
      compute_workers_(options.threads, options.cpus),
      update_workers_(options.update_threads, options.cpus),
      compute_(make_compute(options, layout_)),
      compute_device_(make_device(options, arena_bytes(plan, Tier::kDevice))),
      device_(compute_device_->device()),
      host_memory_(host_arena_bytes(plan), HostMemoryOptions{.numa_nodes = options.numa_nodes}),
      token_memory_(2 * step_tokens_bytes(plan), HostMemoryOptions{}),
      locked_host_(compute_device_->lock(host_memory_.bytes())),
      locked_tokens_(compute_device_->lock(token_memory_.bytes())),
      slots_(2) {
  make_store(options.nvme, log);
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].tokens =
        token_memory_.bytes().subspan(i * step_tokens_bytes(plan), step_tokens_bytes(plan));
  }
  memory_.host_reaches_device = exchange_of(options.backend) == nullptr;
  TERRACE_CHECK(memory_.host_reaches_device || options.ranks.shape.ranks() == 1 ||
                options.ranks.devices != nullptr);
  const std::size_t device_bytes = arena_bytes(plan, Tier::kDevice);
  if (device_bytes != 0) {
    device_memory_ = device_.allocate(device_bytes);
    memory_.device = device_memory_->bytes();
  }
  memory_.host = host_memory_.bytes();
  connect_ranks(options.ranks, {options.gradient_type, options.compute_type}, memory_.device,
                device_);
  prepare_kernels();
  fill_constants();
  if (plan.model.scales_loss) set_loss_scale(initial_loss_scale(options.optimizer.loss_scale));
  const Program& program = plan.training.program;
  homes_ = std::make_unique<HomeAccess>(program, plan.model, memory_, device_, store_.get());
  state_ = std::make_unique<TrainingState>(*homes_, plan.model, layout_, *options_.optimizer.rule);
  bodies_ = make_bodies(program);
  OpBodies& bodies = options.bodies != nullptr ? *options.bodies : *bodies_;
  executor_ = std::make_unique<LaneExecutor>(program, memory_,
                                             LaneServices{device_, store_.get(), bodies, clock_});
}

std::unique_ptr<StepBodies> Engine::make_bodies(const Program& program) {
  const StepComputation computation = {plan_.model,
                                       compute_,
                                       options_.optimizer,
                                       compute_device_->kernels(),
                                       compute_workers_,
                                       update_workers_,
                                       options_.placement.name_of_option};
  return std::make_unique<StepBodies>(program, memory_, store_.get(), computation, options_.ranks);
}

// No rank then waits in a step for another that still loads what attention needs.
void Engine::prepare_kernels() {
  const LaneKernels kernels = compute_device_->kernels();
  KernelContext context;
  context.workers = &compute_workers_;
  context.products = kernels.products;
  context.attention = kernels.attention;
  compute_.prepare(context);
}

Engine::~Engine() = default;

void Engine::make_store(const NvmeStoreOptions& options, Log& log) {
  const std::vector<std::size_t> sizes = extent_sizes(plan_.training.program);
  if (sizes.empty()) return;
  NvmeStoreOptions sized = options;
  sized.expected_bytes = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
  store_ = make_nvme_store(sized, log);
  for (const std::size_t size : sizes) memory_.extents.push_back(store_->create_extent(size));
  store_->prepare();
  store_->register_memory(host_memory_.bytes());
}

void Engine::fill_constants() {
  const std::vector<float> table = compute_.constants();
  if (table.empty()) return;
  const Program& program = plan_.training.program;
  const Access access = whole(program, find_buffer(program, {BufferKind::kConstants}));
  const std::span<const std::byte> bytes = std::as_bytes(std::span(table));
  const std::unique_ptr<Stream> stream = device_.create_stream("constants");
  stream->copy(bytes_of(program, memory_, access).first(bytes.size()), bytes);
  stream->synchronize();
}

void Engine::fill_state(const StateSource& source, FillProgress progress) {
  if (options_.ranks.shape.tensor == 1) {
    return state_->fill_from(source, compute_workers_, progress);
  }
  const std::vector<UnitLayout> whole = parameter_layout(options_.model);
  state_->fill_from(TensorPartState(source, whole), compute_workers_, progress);
}

std::span<std::byte> Engine::loss_scale_bytes() {
  const Program& program = plan_.training.program;
  const BufferId buffer = find_buffer(program, {BufferKind::kLossScale});
  return buffer == kNoBuffer ? std::span<std::byte>()
                             : bytes_of(program, memory_, whole(program, buffer));
}

std::optional<LossScaleState> Engine::loss_scale() {
  TERRACE_CHECK(!updates_pending_);
  const std::span<std::byte> bytes = loss_scale_bytes();
  if (bytes.empty()) return resumed_loss_scale_;
  LossScaleState state;
  std::memcpy(&state, bytes.data(), sizeof(state));
  return state;
}

void Engine::set_loss_scale(const LossScaleState& state) {
  TERRACE_CHECK_EQ(begun_, 0);
  resumed_loss_scale_ = state;
  const std::span<std::byte> bytes = loss_scale_bytes();
  if (!bytes.empty()) std::memcpy(bytes.data(), &state, sizeof(state));
}

RunInput Engine::input_for(Slot& slot, const StepBatch& batch) {
  const std::span<const std::byte> tokens = std::as_bytes(batch.tokens);
  TERRACE_CHECK_LE(tokens.size(), slot.tokens.size());
  std::ranges::copy(tokens, slot.tokens.begin());
  RunInput input;
  input.step = batch.step;
  input.tokens = slot.tokens.first(tokens.size());
  input.target_tokens = std::max<std::int64_t>(1, batch.target_tokens);
  input.scalars.step = static_cast<std::uint32_t>(batch.step);
  input.scalars.learning_rate = static_cast<float>(batch.learning_rate);
  const std::int64_t skipped = resumed_loss_scale_ ? resumed_loss_scale_->skipped_steps : 0;
  const OptimizerOptions& optimizer = options_.optimizer;
  input.scalars.of_rule = optimizer.rule->step_scalars(optimizer.numbers, batch.step - skipped);
  input.result = &slot.result;
  return input;
}

void Engine::begin_step(const StepBatch& batch) {
  Slot& slot = slots_.at(static_cast<std::size_t>(begun_ % 2));
  executor_->start(updates_pending_ ? Part::kBody : Part::kPrologue, input_for(slot, batch));
  ++begun_;
  last_step_ = batch.step;
  updates_pending_ = true;
}

StepOutcome Engine::finish_step() {
  const Slot& slot = slots_.at(static_cast<std::size_t>(finished_ % 2));
  const RunReport& report = retire(*executor_);
  ++finished_;
  return {&report, slot.result};
}

const RunReport& Engine::retire(LaneExecutor& executor) const {
  const RunReport& report = executor.retire();
  options_.ranks.throw_if_aborted();
  return report;
}

void Engine::rethrow_failure() const {
  executor_->rethrow_failure();
  if (evaluator_ != nullptr) evaluator_->rethrow_failure();
}

int Engine::unfinished_steps() const { return executor_->runs_in_flight(); }

const RunReport* Engine::drain() {
  TERRACE_CHECK_EQ(unfinished_steps(), 0);
  if (!updates_pending_) return nullptr;
  RunInput input;
  input.step = last_step_;
  executor_->start(Part::kDrain, input);
  updates_pending_ = false;
  return &retire(*executor_);
}

double Engine::evaluate(std::span<const std::int32_t> tokens) {
  TERRACE_CHECK(!updates_pending_ && options_.evaluates);
  const Program& program = plan_.evaluation;
  if (evaluator_ == nullptr) {
    evaluation_bodies_ = make_bodies(program);
    evaluator_ = std::make_unique<LaneExecutor>(
        program, memory_, LaneServices{device_, store_.get(), *evaluation_bodies_, clock_});
  }
  // A device that fails leaves copies under way: what they read must be the engine's.
  const std::span<const std::byte> bytes_of_tokens = std::as_bytes(tokens);
  const std::span<std::byte> kept = slots_.front().tokens;
  TERRACE_CHECK_LE(bytes_of_tokens.size(), kept.size());
  std::ranges::copy(bytes_of_tokens, kept.begin());
  RunInput input;
  input.tokens = kept.first(bytes_of_tokens.size());
  evaluator_->start(Part::kPrologue, input);
  retire(*evaluator_);
  if (!options_.ranks.has_losses()) return 0;
  BufferId losses = find_buffer(program, {BufferKind::kLossesOnHost});
  if (losses == kNoBuffer) losses = find_buffer(program, {BufferKind::kLosses});
  const std::span<std::byte> bytes = bytes_of(program, memory_, whole(program, losses));
  double sum = 0;
  for (std::int32_t m = 0; m < program.micro_batches; ++m) {
    double loss = 0;
    std::memcpy(&loss, bytes.data() + static_cast<std::size_t>(m) * sizeof(double), sizeof(loss));
    sum += loss;
  }
  return sum;
}

std::vector<StorePath> Engine::store_paths() const {
  return store_ == nullptr ? std::vector<StorePath>{} : store_->paths();
}

}  // namespace terrace
