#include "runtime/engine/tier_runtime.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/usage_error.h"
#include "runtime/engine/connect_ranks.h"
#include "runtime/engine/recording_bodies.h"

namespace terrace {
namespace {

constexpr std::size_t kPageBytes = 4096;

std::unique_ptr<ComputeDevice> make_device(const TierRuntimeOptions& options,
                                           std::size_t capacity_bytes) {
  return options.backend != nullptr ? options.backend->make(capacity_bytes)
                                    : make_cpu_compute_device(capacity_bytes);
}

// An arena cannot be empty.
std::size_t input_arena_bytes(const TierPlan& plan) {
  return std::max<std::size_t>(2 * step_input_bytes(plan), 1);
}

}  // namespace

// Input and results of one of the two runs that may be in flight.
struct TierRuntime::Slot {
  std::span<std::byte> input;
  StepResult result;
};

TierRuntime::TierRuntime(const TierRuntimeOptions& options, const TierPlan& plan,
                         StepCompute& compute, Log& log)
    : options_(options),
      plan_(plan),
      training_(plan.training.program),
      compute_(compute),
      compute_workers_(options.threads, options.cpus),
      update_workers_(options.update_threads, options.cpus),
      compute_device_(make_device(options, arena_bytes(plan, Tier::kDevice))),
      device_(compute_device_->device()),
      host_memory_(std::make_shared<HostMemory>(
          host_arena_bytes(plan), HostMemoryOptions{.numa_nodes = options.numa_nodes})),
      input_memory_(input_arena_bytes(plan), HostMemoryOptions{}),
      locked_host_(compute_device_->lock(host_memory_->bytes())),
      locked_input_(compute_device_->lock(input_memory_.bytes())),
      slots_(2) {
  check_same_options();
  check_communicators();
  make_store(log);
  make_memory();
  connect_ranks(options.ranks, {options.gradient_type, plan.model.compute_type}, memory_.device,
                device_);
  clear_losses();
  if (plan.model.scales_loss) set_loss_scale(initial_loss_scale(options.optimizer.loss_scale));
  make_lanes();
}

std::vector<std::int32_t> TierRuntime::owners_of(const StepModel& model) {
  std::vector<std::int32_t> owners;
  for (const ParameterGroup& group : model.groups) owners.push_back(group.unit);
  return owners;
}

// Opens the gate and releases the norm, because lanes may still wait for them.
TierRuntime::~TierRuntime() {
  home_gate_.open_all();
  if (bodies_ != nullptr) bodies_->release_norm();
}

// Compares the options that the plan rests on with the runtime's.
void TierRuntime::check_same_options() const {
  const StepModel& model = plan_.model;
  const StateFormat wanted = state_format_of(model.compute_type, options_.optimizer);
  const bool waits = options_.optimizer.max_grad_norm > 0 || model.scales_loss;
  const bool has_formats = model.formats_of_groups == formats_of_groups(model, options_.optimizer);
  if (model.state_format == wanted && has_formats &&
      model.gradient_type == options_.gradient_type &&
      model.measures_noise == (options_.measures_gradient_noise && options_.trains) &&
      (model.wire == options_.wire || !options_.trains) &&
      plan_.training.policy.updates_wait_for_norm == waits &&
      model.zero.stage == options_.zero_stage && model.zero.partition == options_.zero_partition &&
      model.zero.islands == options_.ranks.shape.islands) {
    return;
  }
  throw UsageError(
      "the plan was made with other options for the optimizer, gradient_type, zero_stage, "
      "zero_partition, wire or measures_gradient_noise",
      "plan with the same options as the runtime");
}

void TierRuntime::check_communicators() const {
  const StepRanks& ranks = options_.ranks;
  const bool reaches = exchange_of(options_.backend) == nullptr;
  const bool lacks = (ranks.shape.ranks() > 1 && ranks.world == nullptr) ||
                     (ranks.shape.data > 1 && ranks.data.host == nullptr) ||
                     (ranks.shape.islands > 1 &&
                      (ranks.island.host == nullptr || ranks.inter_island.host == nullptr)) ||
                     (ranks.shape.tensor > 1 && ranks.tensor.host == nullptr) ||
                     (!reaches && ranks.shape.ranks() > 1 && ranks.devices == nullptr);
  if (!lacks) return;
  throw UsageError(
      fmt::format("there are {} ranks, but no communicator for them is given", ranks.shape.ranks()),
      "make the communicators with StepCommunicators, and those for devices with add_devices()");
}

void TierRuntime::make_store(Log& log) {
  const std::vector<std::size_t> sizes = extent_sizes(plan_.training.program);
  if (sizes.empty()) return;
  NvmeStoreOptions sized = options_.nvme;
  sized.expected_bytes = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
  store_ = make_nvme_store(sized, log);
  for (const std::size_t size : sizes) memory_.extents.push_back(store_->create_extent(size));
  store_->prepare();
  store_->register_memory(host_memory_->bytes());
}

void TierRuntime::make_memory() {
  const std::size_t input_bytes = step_input_bytes(plan_);
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].input = input_memory_.bytes().subspan(i * input_bytes, input_bytes);
  }
  memory_.host_reaches_device = exchange_of(options_.backend) == nullptr;
  const std::size_t device_bytes = arena_bytes(plan_, Tier::kDevice);
  if (device_bytes != 0) {
    device_memory_ = device_.allocate(device_bytes);
    memory_.device = device_memory_->bytes();
  }
  memory_.host = host_memory_->bytes();
}

// Units need not compute a loss. It is 0 then.
void TierRuntime::clear_losses() {
  const Program& program = plan_.training.program;
  const BufferId losses = buffer(program, BufferKind::kLosses);
  const std::vector<std::byte> zeros(program.buffers.at(losses).size_bytes);
  copy_to_compute(losses, zeros);
  const BufferId on_host = buffer(program, BufferKind::kLossesOnHost);
  if (on_host != kNoBuffer) std::ranges::fill(bytes_of_buffer(program, on_host), std::byte{0});
}

void TierRuntime::make_lanes() {
  const Program& program = training_.program();
  homes_ = std::make_unique<HomeAccess>(program, plan_.model, memory_, device_, store_.get());
  state_ = std::make_unique<UnitState>(*homes_, plan_.model, options_.optimizer);
  bodies_ = make_bodies(program);
  OpBodies& bodies = options_.bodies != nullptr ? *options_.bodies : *bodies_;
  if (options_.hashes != nullptr) make_recorder(bodies);
  OpBodies& run = recorder_ != nullptr ? static_cast<OpBodies&>(*recorder_) : bodies;
  executor_ = std::make_unique<LaneExecutor>(
      program, memory_, LaneServices{device_, store_.get(), run, clock_, &home_gate_});
}

void TierRuntime::make_recorder(OpBodies& bodies) {
  if (!memory_.host_reaches_device || options_.optimizer.can_skip_steps) {
    throw UsageError(
        "hashes cannot be recorded: the host does not reach the memory of the "
        "device, or steps may be skipped",
        "leave TierRuntimeOptions::hashes unset");
  }
  const OpBytes bytes{training_.program(), memory_};
  recorder_ = std::make_unique<RecordingBodies>(
      RecordingBodies::Parts{bodies, compute_workers_, update_workers_, *options_.hashes},
      HashedTraining{bytes, plan_.model, options_.optimizer, options_.ranks.position});
}

std::unique_ptr<StepBodies> TierRuntime::make_bodies(const Program& program) {
  const StepComputation computation = {plan_.model,
                                       compute_,
                                       options_.optimizer,
                                       compute_device_->kernels(),
                                       compute_workers_,
                                       update_workers_,
                                       options_.placement.name_of_option};
  return std::make_unique<StepBodies>(program, memory_, store_.get(), computation, options_.ranks);
}

KernelContext TierRuntime::kernel_context() {
  const LaneKernels kernels = compute_device_->kernels();
  KernelContext context;
  context.workers = &compute_workers_;
  context.products = kernels.products;
  context.attention = kernels.attention;
  return context;
}

// --- checks of calls ----------------------------------------------------------------------------

void TierRuntime::check_good(const char* call) const {
  if (!has_failed_) return;
  throw UsageError(fmt::format("{}: a step of this runtime has failed", call),
                   "destroy it, and go on with a new one from state that was saved");
}

void TierRuntime::check_idle(const char* call) const {
  check_good(call);
  if (unfinished_steps() > 0) {
    throw UsageError(
        fmt::format("{}: {} of the steps begun are unfinished", call, unfinished_steps()),
        "call finish_step() for each, and drain()");
  }
  if (!updates_pending_) return;
  throw UsageError(fmt::format("{}: the updates of step {} have not run yet", call, last_step_),
                   "call drain() first");
}

void TierRuntime::check_input(const char* call, std::span<const std::byte> input) const {
  const std::size_t wanted = step_input_bytes(plan_);
  if (input.size() == wanted) return;
  throw UsageError(
      fmt::format("{}: the input has {} bytes, but a step takes {}: {} micro-batches of {}", call,
                  input.size(), wanted, plan_.training.program.micro_batches,
                  plan_.model.tokens_bytes),
      "give the input of all micro-batches, one after the other");
}

// --- state --------------------------------------------------------------------------------------

void TierRuntime::fill_state(ElementSource source, FillProgress progress) {
  fill_state(FillSource{source}, progress);
}

void TierRuntime::fill_state(const FillSource& source, FillProgress progress) {
  check_idle("fill_state()");
  has_state_ = false;
  state_->fill(source, compute_workers_, progress);
  has_state_ = true;
}

UnitState& TierRuntime::state() {
  check_idle("state()");
  return *state_;
}

void TierRuntime::read_state(StateField field, std::int32_t group, std::int64_t begin,
                             std::span<float> out) {
  check_idle("read_state()");
  if (!has_state_) throw UsageError("read_state(): no state was set", "call fill_state() first");
  if (group < 0 || group > plan_.model.group_count() - 1) {
    throw UsageError(fmt::format("read_state(): group {} of {}", group, plan_.model.group_count()),
                     "groups are numbered from 0, as they are described");
  }
  const std::int64_t elements = plan_.model.groups.at(group).padded_elements;
  const std::int64_t end = begin + std::ssize(out);
  if (begin < 0 || end > elements) {
    throw UsageError(fmt::format("read_state(): elements {} to {} of group {}, which has {}", begin,
                                 end, group, elements),
                     "read within padded_elements");
  }
  const std::int32_t rule = plan_.model.groups.at(static_cast<std::size_t>(group)).rule;
  const std::size_t slots = options_.optimizer.rule_of(rule).rule->slots.size();
  const std::optional<std::size_t> slot = slot_of(field);
  if (slot && *slot >= slots) {
    throw UsageError(fmt::format("read_state(): slot {} is asked for, but the update rule keeps {}",
                                 *slot, slots),
                     "read state_fields() of the rule's slots");
  }
  if (!state_->is_here(field, group, {begin, end})) {
    throw UsageError(
        fmt::format("read_state(): not all of elements {} to {} of group {} have their "
                    "home on this rank",
                    begin, end, group),
        "read them on the ranks that own them: each owns an equal part of a chunk");
  }
  state_->read(field, group, begin, out);
}

void TierRuntime::set_constants(std::span<const std::byte> bytes) {
  if (begun_ > 0) throw UsageError("set_constants(): a step was begun", "call it before the first");
  if (bytes.size() > plan_.model.constants_bytes) {
    throw UsageError(fmt::format("set_constants(): {} bytes are given, but {} are described",
                                 bytes.size(), plan_.model.constants_bytes),
                     "set ComputeModel::constants_bytes");
  }
  if (!bytes.empty())
    copy_to_compute(buffer(plan_.training.program, BufferKind::kConstants), bytes);
}

BufferId TierRuntime::buffer(const Program& program, BufferKind kind) const {
  return find_buffer(program, {kind});
}

std::span<std::byte> TierRuntime::bytes_of_buffer(const Program& program, BufferId buffer) const {
  return bytes_of(program, memory_,
                  {Role::kSource, buffer, 0, program.buffers.at(buffer).size_bytes});
}

void TierRuntime::copy_to_compute(BufferId buffer, std::span<const std::byte> bytes) {
  const std::unique_ptr<Stream> stream = device_.create_stream("constants");
  stream->copy(bytes_of_buffer(plan_.training.program, buffer).first(bytes.size()), bytes);
  stream->synchronize();
}

std::span<std::byte> TierRuntime::loss_scale_bytes() const {
  const Program& program = plan_.training.program;
  const BufferId found = buffer(program, BufferKind::kLossScale);
  return found == kNoBuffer ? std::span<std::byte>() : bytes_of_buffer(program, found);
}

std::optional<LossScaleState> TierRuntime::loss_scale() {
  check_idle("loss_scale()");
  const std::span<std::byte> bytes = loss_scale_bytes();
  if (bytes.empty()) return resumed_loss_scale_;
  LossScaleState state;
  std::memcpy(&state, bytes.data(), sizeof(state));
  return state;
}

void TierRuntime::set_loss_scale(const LossScaleState& state) {
  if (begun_ > 0)
    throw UsageError("set_loss_scale(): a step was begun", "call it before the first");
  resumed_loss_scale_ = state;
  const std::span<std::byte> bytes = loss_scale_bytes();
  if (!bytes.empty()) std::memcpy(bytes.data(), &state, sizeof(state));
}

// --- steps --------------------------------------------------------------------------------------

RunInput TierRuntime::input_for(Slot& slot, const TierStep& step) {
  std::ranges::copy(step.input, slot.input.begin());
  RunInput input;
  input.step = step.step;
  input.tokens = slot.input;
  input.target_tokens = std::max<std::int64_t>(1, step.loss_terms);
  input.small_batch_tokens = step.small_batch_terms;
  input.scalars.step = static_cast<std::uint32_t>(step.step);
  input.scalars.learning_rate = static_cast<float>(step.learning_rate);
  const std::int64_t skipped = resumed_loss_scale_ ? resumed_loss_scale_->skipped_steps : 0;
  input.update_number = step.step - skipped;
  input.learning_rate = step.learning_rate;
  input.micro_batches = step.micro_batches.value_or(kAllMicroBatches);
  input.result = &slot.result;
  return input;
}

void TierRuntime::begin_step(const TierStep& step) {
  check_good("begin_step()");
  if (sink_ || updates_are_skipped_) {
    throw UsageError("begin_step(): the last step has not updated anything yet",
                     "call drain() first");
  }
  if (!options_.trains) {
    throw UsageError("begin_step(): the plan has no training",
                     "set TierRuntimeOptions::trains before it is made");
  }
  if (!has_state_) throw UsageError("begin_step(): no state was set", "call fill_state() first");
  const int most = options_.optimizer.can_skip_steps ? 1 : 2;
  if (unfinished_steps() == most) {
    throw UsageError(
        fmt::format("begin_step(): {} unfinished", most == 1 ? "one step is" : "two steps are"),
        "call finish_step() first");
  }
  const bool follows = begun_ == 0 ? step.step >= 1 : step.step == last_step_ + 1;
  if (!follows) {
    throw UsageError(begun_ == 0 ? fmt::format("begin_step(): the first step is {}", step.step)
                                 : fmt::format("begin_step(): step {} does not follow step {}",
                                               step.step, last_step_),
                     "number steps from 1, or continue after the last saved step, without gaps");
  }
  check_input("begin_step()", step.input);
  check_micro_batches(step);
  Slot& slot = slots_.at(static_cast<std::size_t>(begun_ % 2));
  if (options_.optimizer.can_skip_steps) bodies_->hold_norm();
  if (recorder_ != nullptr) recorder_->begin(step.step, step.input);
  executor_->start(updates_pending_ ? Part::kBody : Part::kPrologue, input_for(slot, step));
  ++begun_;
  last_step_ = step.step;
  updates_pending_ = true;
}

void TierRuntime::check_micro_batches(const TierStep& step) const {
  const std::int32_t most = plan_.training.program.micro_batches;
  const std::int32_t count = step.micro_batches.value_or(most);
  if (count == most) return;
  if (count < 1 || count > most) {
    throw UsageError(fmt::format("begin_step(): {} micro-batches", count),
                     fmt::format("a step of this plan may have 1 to {}", most));
  }
  const bool is_fixed = !plan_.model.tasks.empty() || plan_.model.router_layers() > 0 ||
                        options_.placement.reduces_micro_batches;
  if (is_fixed) {
    throw UsageError(fmt::format("begin_step(): {} micro-batches of {}", count, most),
                     "plans with tasks of their own, with experts, or that reduce each micro-batch "
                     "have all micro-batches in every step");
  }
}

TierStepOutcome TierRuntime::finish_step() {
  if (unfinished_steps() == 0) {
    throw UsageError("finish_step(): no step is unfinished", "call begin_step() first");
  }
  const Slot& slot = slots_.at(static_cast<std::size_t>(finished_ % 2));
  bodies_->release_norm();
  const RunReport& report = retire(*executor_);
  ++finished_;
  if (recorder_ != nullptr) recorder_->finish(report.step);
  updates_are_skipped_ = slot.result.was_skipped && !plan_.model.scales_loss;
  return {&report, slot.result};
}

// Retires a run, and throws unless its collectives all came to their end.
const RunReport& TierRuntime::retire(LaneExecutor& executor) {
  has_failed_ = true;  // until it is known that it has not
  const RunReport& report = executor.retire();
  options_.ranks.throw_if_aborted();
  has_failed_ = false;
  return report;
}

void TierRuntime::rethrow_failure() const {
  executor_->rethrow_failure();
  if (evaluator_ != nullptr) evaluator_->rethrow_failure();
}

int TierRuntime::unfinished_steps() const { return executor_->runs_in_flight(); }

const RunReport* TierRuntime::drain() {
  check_good("drain()");
  if (unfinished_steps() > 0) {
    throw UsageError(fmt::format("drain(): {} steps are unfinished", unfinished_steps()),
                     "call finish_step() for each");
  }
  if (!updates_pending_) return nullptr;
  RunInput input;
  input.step = last_step_;
  executor_->start(Part::kDrain, input);
  updates_pending_ = false;
  const RunReport& report = retire(*executor_);
  if (recorder_ != nullptr) recorder_->drain();
  if (updates_are_skipped_) {
    bodies_->give_gradients_to(nullptr);
    sink_ = nullptr;
    updates_are_skipped_ = false;
    --last_step_;
  }
  return &report;
}

void TierRuntime::abandon_step(GradientSink sink) {
  check_good("abandon_step()");
  if (unfinished_steps() != 1 || sink_) {
    throw UsageError(fmt::format("abandon_step(): {} steps are unfinished", unfinished_steps()),
                     "abandon one step at a time, before finish_step()");
  }
  if (!options_.optimizer.can_skip_steps || plan_.model.scales_loss || plan_.model.ranks() != 1 ||
      options_.gradient_type != DType::kF32 || plan_.training.program.compute_tier != Tier::kHost) {
    throw UsageError("abandon_step(): the plan was made for steps that are not abandoned",
                     "set can_skip_steps, and use one rank, fp32 gradients and only host memory");
  }
  sink_ = std::move(sink);
  bodies_->give_gradients_to(&sink_);
}

double TierRuntime::evaluate(std::span<const std::byte> input) {
  check_idle("evaluate()");
  if (plan_.evaluation.ops.empty()) {
    throw UsageError("evaluate(): the plan has no evaluation",
                     "set TierRuntimeOptions::evaluates before it is made");
  }
  if (!has_state_) throw UsageError("evaluate(): no state was set", "call fill_state() first");
  check_input("evaluate()", input);
  if (!evaluation_.has_value()) evaluation_.emplace(plan_.evaluation);
  const Program& program = evaluation_->program();
  if (evaluator_ == nullptr) {
    evaluation_bodies_ = make_bodies(program);
    evaluator_ = std::make_unique<LaneExecutor>(
        program, memory_, LaneServices{device_, store_.get(), *evaluation_bodies_, clock_});
  }
  // A device that fails leaves copies under way, so they must read memory of the runtime.
  std::ranges::copy(input, slots_.front().input.begin());
  RunInput run;
  run.tokens = slots_.front().input;
  evaluator_->start(Part::kPrologue, run);
  const RunReport& report = retire(*evaluator_);
  evaluated_compute_s_ = report.busy_s.at(static_cast<std::size_t>(Lane::kCompute));
  if (!options_.ranks.has_losses()) return 0;
  BufferId losses = buffer(program, BufferKind::kLossesOnHost);
  if (losses == kNoBuffer) losses = buffer(program, BufferKind::kLosses);
  const std::span<std::byte> bytes = bytes_of_buffer(program, losses);
  double sum = 0;
  for (std::int32_t m = 0; m < program.micro_batches; ++m) {
    double loss = 0;
    std::memcpy(&loss, bytes.data() + static_cast<std::size_t>(m) * sizeof(double), sizeof(loss));
    sum += loss;
  }
  return sum;
}

// --- a pause ------------------------------------------------------------------------------------

std::vector<std::span<std::byte>> TierRuntime::kept_pages() {
  check_idle("kept_pages()");
  const Program& program = plan_.training.program;
  if (program.compute_tier != Tier::kHost) {
    throw UsageError("kept_pages(): part of the state is on a device",
                     "pause only a runtime that computes in host memory");
  }
  std::vector<std::pair<std::size_t, std::size_t>> ranges;
  for (const Buffer& buffer : program.buffers) {
    if (buffer.tier != Tier::kHost || buffer.life != Life::kPersistent) continue;
    ranges.emplace_back(buffer.offset / kPageBytes * kPageBytes,
                        round_up(buffer.offset + buffer.size_bytes, kPageBytes));
  }
  std::ranges::sort(ranges);
  std::vector<std::span<std::byte>> pages;
  std::size_t end = 0;  // of the pages so far
  for (const auto& [first, last] : ranges) {
    if (last <= end) continue;
    const std::size_t begin = std::max(first, end);
    pages.push_back(host_memory_->pages().subspan(begin, last - begin));
    end = last;
  }
  return pages;
}

void TierRuntime::give_pages_back() {
  check_idle("give_pages_back()");
  // A drive that has registered the memory would go on with its old pages.
  if (store_ != nullptr) store_->register_memory({});
  host_memory_->give_pages_back();
  input_memory_.give_pages_back();
  homes_->give_pages_back();
}

void TierRuntime::take_pages() {
  host_memory_->take_pages();
  if (store_ != nullptr) store_->register_memory(host_memory_->bytes());
}

std::vector<StorePath> TierRuntime::store_paths() const {
  return store_ == nullptr ? std::vector<StorePath>{} : store_->paths();
}

}  // namespace terrace
