#include "runtime/session/unit_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "memory/host/host_limits.h"
#include "memory/host/thread_plan.h"
#include "memory/host/topology.h"
#include "runtime/session/ledger_text.h"
#include "runtime/session/scalar_range.h"
#include "runtime/session/session_error.h"
#include "runtime/session/state_files.h"

namespace terrace {
namespace {

constexpr std::int64_t kUnitElementsMax = std::int64_t{1} << 40;
constexpr std::int32_t kMicroBatchesMost = 1 << 20;

[[noreturn]] void refuse_unit(const std::string& what, const std::string& remedy) {
  throw SessionError(SessionProblem::kArgument, what, remedy);
}

[[noreturn]] void refuse_turn(const std::string& what, const std::string& remedy) {
  throw SessionError(SessionProblem::kOrder, what, remedy);
}

std::string_view field_of_header(Option option) {
  constexpr std::array<std::string_view, kOptionCount> kFields = {"device_memory_bytes",
                                                                  "host_memory_bytes",
                                                                  "budget_bytes of nvme",
                                                                  "nvme",
                                                                  "threads",
                                                                  "micro_batches",
                                                                  "micro_batches",
                                                                  "saved_bytes",
                                                                  "compute_dtype",
                                                                  "ranks",
                                                                  "ranks",
                                                                  "learning_rate",
                                                                  "TERRACE_UNIT_FROZEN",
                                                                  "evaluation"};
  return kFields.at(static_cast<std::size_t>(option));
}

}  // namespace

UnitSession::UnitSession(UnitSessionOptions options, std::unique_ptr<Log> log)
    : options_(std::move(options)), log_(std::move(log)) {
  rules_.add_group(options_.rule, options_.hyperparameters, options_.weight_decay);
  if (options_.micro_batches < 1 || options_.micro_batches > kMicroBatchesMost) {
    refuse_unit(fmt::format("micro_batches is {}", options_.micro_batches),
                fmt::format("it must be 1 to {}", kMicroBatchesMost));
  }
  if (!fits_float(options_.max_grad_norm)) {
    refuse_unit(fmt::format("max_grad_norm is {}", options_.max_grad_norm),
                "it must be more than 0 and fit fp32, or be 0 for no clipping");
  }
  const bool names_nvme = std::ranges::any_of(options_.homes.values,
                                              [](const auto& tier) { return tier == Tier::kNvme; });
  if (names_nvme && options_.nvme.directories.empty()) {
    refuse_unit("the state should live on NVMe, but no directory is named", "name one in nvme");
  }
  const bool is_on_host = std::ranges::all_of(kStateClasses, [&](const StateClassInfo& info) {
    const bool is_of_ranks = info.use == StateUse::kReduce;  // and a session has one rank
    return is_of_ranks || options_.homes[info.state] == Tier::kHost;
  });
  if (is_on_host && !options_.nvme.directories.empty()) {
    refuse_unit("the state should live on the host, but NVMe directories are named",
                "leave them out, or set a tier to TERRACE_TIER_AUTO");
  }
}

UnitSession::~UnitSession() { gate_.close(); }

void UnitSession::expect(Phase phase, const char* call) const {
  if (phase_ == phase) return;
  switch (phase_) {
    case Phase::kOpen:
      refuse_turn(fmt::format("{} before terrace_units_prepare()", call), "prepare the units");
    case Phase::kPrepared:
      refuse_turn(fmt::format("{} before terrace_units_fill()", call),
                  "set parameters and state once, after terrace_units_prepare()");
    case Phase::kReady:
      refuse_turn(phase == Phase::kStepping ? fmt::format("{} while no step is under way", call)
                                            : fmt::format("{} after terrace_units_prepare()", call),
                  phase == Phase::kStepping ? "begin one by terrace_units_step_begin()"
                                            : "add and record everything before it");
    case Phase::kStepping:
      refuse_turn(fmt::format("{} while a step is under way", call),
                  "end it by terrace_units_step_end() first");
    case Phase::kPaused:
      refuse_turn(fmt::format("{} while the units are paused", call),
                  "take their memory again by terrace_units_resume()");
    case Phase::kFailed:
      throw SessionError(SessionProblem::kFailed,
                         fmt::format("{}: the units' session has failed before", call),
                         "destroy it, and go on from state that was read before");
  }
}

const SessionUnit& UnitSession::unit(std::int32_t number) const {
  if (number < 0 || static_cast<std::size_t>(number) >= units_.size()) {
    refuse_unit(fmt::format("there is no unit {}", number),
                fmt::format("there are {}, counted from 0", units_.size()));
  }
  return units_[static_cast<std::size_t>(number)];
}

std::int32_t UnitSession::add_unit(SessionUnit unit) {
  expect(Phase::kOpen, "a unit is added");
  if (unit.name.empty()) refuse_unit("a unit has no name", "name it");
  if (unit.elements < 1 || unit.elements > kUnitElementsMax) {
    refuse_unit(fmt::format("unit {} has {} elements", unit.name, unit.elements),
                "leave out a unit without parameters");
  }
  if (unit.decayed_elements < 0 || unit.decayed_elements > unit.elements ||
      (unit.is_frozen && unit.decayed_elements > 0)) {
    refuse_unit(fmt::format("unit {} has {} elements that decay", unit.name, unit.decayed_elements),
                "count only those at its start; a frozen unit has none");
  }
  units_.push_back(std::move(unit));
  return static_cast<std::int32_t>(units_.size() - 1);
}

void UnitSession::record(const StepTask& task) {
  expect(Phase::kOpen, "a task is recorded");
  unit(task.unit);
  if (task.micro_batch < 0 || task.micro_batch >= options_.micro_batches) {
    refuse_unit(fmt::format("there is no micro-batch {}", task.micro_batch),
                fmt::format("there are {}, counted from 0", options_.micro_batches));
  }
  tasks_.push_back(task);
}

ComputeModel UnitSession::describe_units() const {
  ComputeModel model;
  model.compute_type = options_.compute_type;
  for (const SessionUnit& unit : units_) {
    UnitModel described = {.kind = UnitKind::kBlock, .saved_bytes = unit.saved_bytes};
    ParameterGroup parameters = {.padded_elements = padded_elements(unit.elements),
                                 .decayed_elements = unit.decayed_elements};
    UnitStep forward;
    UnitStep backward;
    if (unit.saved_bytes > 0) {
      forward.writes.push_back({Role::kSaved});
      backward.reads.push_back({Role::kSaved});
    }
    if (unit.is_frozen) {
      parameters.frozen_elements = parameters.padded_elements;
    } else {
      backward.writes.push_back({Role::kGradient});
    }
    described.forward = {forward};
    described.backward = {backward};
    model.add(std::move(described), parameters);
  }
  return model;
}

TierRuntimeOptions UnitSession::runtime_options() const {
  const HostLimits limits = read_host_limits();
  const ThreadPlan threads = plan_threads(options_.threads, limits, read_topology());
  TierRuntimeOptions options;
  options.placement.homes = options_.homes;
  options.placement.recompute = false;
  options.placement.micro_batches = options_.micro_batches;
  options.placement.has_nvme = !options_.nvme.directories.empty();
  options.placement.name_of_option = field_of_header;
  options.budgets[static_cast<std::size_t>(Tier::kHost)] =
      options_.host_memory_bytes.value_or(limits.usable_bytes() / 10 * 9);
  std::size_t drives = 0;
  bool has_limit = !options_.nvme.directories.empty();
  for (const NvmeDirectory& directory : options_.nvme.directories) {
    has_limit = has_limit && directory.budget_bytes.has_value();
    drives += directory.budget_bytes.value_or(0);
  }
  if (has_limit) options.budgets[static_cast<std::size_t>(Tier::kNvme)] = drives;
  options.optimizer.rule = rules_.groups().front().rule;
  options.optimizer.numbers = rules_.groups().front().options;
  options.optimizer.max_grad_norm = options_.max_grad_norm;
  if (options_.can_abandon) {
    options.optimizer.can_skip_steps = true;
    // A limit that clips no finite gradient.
    if (options_.max_grad_norm == 0) {
      options.optimizer.max_grad_norm = std::numeric_limits<float>::max();
    }
  }
  options.nvme = options_.nvme;
  options.update_threads = options_.threads.value_or(threads.update);
  options.evaluates = false;
  options.schedule = tasks_;
  return options;
}

void UnitSession::prepare() {
  expect(Phase::kOpen, "the units are prepared");
  if (units_.empty()) refuse_turn("there are no units", "add one by terrace_unit_add()");
  if (tasks_.empty()) {
    const auto count = static_cast<std::int32_t>(units_.size());
    for (std::int32_t m = 0; m < options_.micro_batches; ++m) {
      for (std::int32_t u = 0; u < count; ++u) tasks_.push_back({UnitPass::kForward, u, m});
      for (std::int32_t u = count; u-- > 0;) tasks_.push_back({UnitPass::kBackward, u, m});
    }
  }
  // A session that fails halfway through this is of no use.
  phase_ = Phase::kFailed;
  runtime_options_ = runtime_options();
  plan_ = plan_tiers(describe_units(), runtime_options_);
  runtime_ = std::make_unique<TierRuntime>(runtime_options_, *plan_, gate_, *log_);
  phase_ = Phase::kPrepared;
}

void UnitSession::fill(std::int64_t steps, StateSource source) {
  if (phase_ != Phase::kReady) expect(Phase::kPrepared, "state is set");
  if (steps < 0 || steps > kMostSteps) {
    refuse_unit(fmt::format("{} steps were made", steps),
                fmt::format("it must be 0 to {}", kMostSteps));
  }
  if (phase_ == Phase::kReady && steps != steps_) {
    refuse_turn(fmt::format("state after {} steps is set, but {} steps were made", steps, steps_),
                "make another session to go back or forward");
  }
  phase_ = Phase::kFailed;
  runtime_->drain();
  runtime_->fill_state(
      [&](StateField field, std::int32_t number, std::int64_t begin, std::span<float> out) {
        const auto size = static_cast<std::int64_t>(out.size());
        const std::int64_t there = std::clamp<std::int64_t>(
            units_[static_cast<std::size_t>(number)].elements - begin, 0, size);
        std::ranges::fill(out.subspan(static_cast<std::size_t>(there)), 0.0F);
        if (there > 0) source(field, number, begin, out.first(static_cast<std::size_t>(there)));
      });
  steps_ = steps;
  phase_ = Phase::kReady;
}

void UnitSession::begin_step(double learning_rate) {
  expect(Phase::kReady, "a step is begun");
  if (!fits_float(learning_rate)) {
    refuse_unit(fmt::format("the learning rate is {}", learning_rate),
                "it must be at least 0 and fit fp32");
  }
  runtime_->begin_step({.step = steps_ + 1, .learning_rate = learning_rate});
  next_ = 0;
  is_abandoned_ = false;
  phase_ = Phase::kStepping;
}

std::string UnitSession::text_of(const StepTask& task) const {
  return fmt::format("the {} of unit {} in micro-batch {}",
                     task.pass == UnitPass::kForward ? "forward" : "backward", unit(task.unit).name,
                     task.micro_batch);
}

AcquiredUnit UnitSession::acquire(const StepTask& task) {
  expect(Phase::kStepping, "a unit is acquired");
  const std::string asked = text_of(task);
  if (is_acquired_) {
    refuse_turn(
        fmt::format("{} is acquired, but {} is not released", asked, text_of(tasks_[next_ - 1])),
        "call terrace_unit_release() first");
  }
  if (next_ == tasks_.size()) {
    refuse_turn(fmt::format("{} is acquired, but the step is complete", asked),
                "end it by terrace_units_step_end()");
  }
  if (tasks_[next_] != task) {
    refuse_turn(fmt::format("{} is acquired, but the step continues with {}", asked,
                            text_of(tasks_[next_])),
                "follow the recorded order");
  }
  UnitGate::Offer offer;
  try {
    offer = gate_.take([&] { runtime_->rethrow_failure(); });
  } catch (...) {
    phase_ = Phase::kFailed;
    throw;
  }
  ++next_;
  is_acquired_ = true;
  acquired_ = {.parameters = offer.memory.of(Role::kParameters),
               .gradient = reinterpret_cast<float*>(offer.memory.of(Role::kGradient)),
               .saved = offer.memory.of(Role::kSaved),
               .adds_gradient = offer.memory.gradient_mode == GradientMode::kAccumulate};
  if (acquired_.gradient != nullptr && !acquired_.adds_gradient) {
    const std::int64_t elements = unit(task.unit).elements;
    std::fill(acquired_.gradient + elements, acquired_.gradient + padded_elements(elements), 0.0F);
  }
  return acquired_;
}

void UnitSession::expect_acquired(std::int32_t number, const char* call) const {
  expect(Phase::kStepping, call);
  unit(number);
  if (is_acquired_ && tasks_[next_ - 1].unit == number) return;
  refuse_turn(fmt::format("{}: unit {} was not acquired", call, unit(number).name),
              "acquire it by terrace_unit_acquire() first");
}

std::unique_ptr<MemoryLoan> UnitSession::lend(std::int32_t number, Role part) {
  expect_acquired(number, "memory of a unit is leased");
  const bool is_gradient = part == Role::kGradient;
  // Parameters may only be read, and nobody writes through a loan that is marked read-only.
  std::byte* const data = is_gradient ? reinterpret_cast<std::byte*>(acquired_.gradient)
                                      : const_cast<std::byte*>(acquired_.parameters);
  if (data == nullptr) return nullptr;
  return std::make_unique<MemoryLoan>(
      MemoryLoan::Elements{.data = data,
                           .dtype = is_gradient ? DType::kF32 : options_.compute_type,
                           .shape = {unit(number).elements},
                           .is_read_only = !is_gradient},
      runtime_->host_memory(), loans_);
}

void UnitSession::release(std::int32_t number) {
  expect_acquired(number, "a unit is released");
  if (!loans_.is_zero()) {
    refuse_turn(fmt::format("unit {} is released while DLPack leases of its memory exist",
                            unit(number).name),
                "delete the tensors that hold them first");
  }
  is_acquired_ = false;
  gate_.give_back();
}

void UnitSession::abandon_step(GradientSink sink) {
  expect(Phase::kStepping, "a step is abandoned");
  if (!options_.can_abandon) {
    refuse_turn("a step is abandoned, but some of its updates may have begun",
                "set TERRACE_UNITS_CAN_ABANDON in terrace_units_options");
  }
  if (is_abandoned_) refuse_turn("a step is abandoned twice", "end it");
  runtime_->abandon_step([this, sink = std::move(sink)](std::int32_t number, std::int64_t begin,
                                                        std::span<const float> gradient) {
    const std::int64_t there = std::clamp<std::int64_t>(unit(number).elements - begin, 0,
                                                        static_cast<std::int64_t>(gradient.size()));
    if (there > 0) sink(number, begin, gradient.first(static_cast<std::size_t>(there)));
  });
  is_abandoned_ = true;
}

StepResult UnitSession::end_step() {
  expect(Phase::kStepping, "a step is ended");
  if (is_acquired_ || next_ < tasks_.size()) {
    refuse_turn(is_acquired_ ? fmt::format("a step is ended, but {} is not released",
                                           text_of(tasks_[next_ - 1]))
                             : fmt::format("a step is ended before {}", text_of(tasks_[next_])),
                "go through the whole step first");
  }
  phase_ = Phase::kFailed;
  const StepResult result = runtime_->finish_step().result;
  if (result.was_skipped) runtime_->drain();
  if (!result.was_skipped) ++steps_;
  phase_ = Phase::kReady;
  if (!result.was_skipped || is_abandoned_) return result;
  throw NotFinite(
      fmt::format("step {}: the norm of its gradients is {}", steps_ + 1, result.gradient_norm),
      "check the data of this step, or lower the learning rate; nothing was updated");
}

std::string_view UnitSession::name_of(StateField field) const {
  const std::optional<std::size_t> slot = slot_of(field);
  return slot ? rules_.groups().front().rule->slots[*slot].name : "master";
}

std::optional<StateField> UnitSession::field_named(std::string_view name) const {
  for (const StateField field : state_fields(rules_.groups().front().rule->slots.size())) {
    if (name_of(field) == name) return field;
  }
  return std::nullopt;
}

void UnitSession::read_state(std::int32_t number, std::string_view field, std::int64_t begin,
                             std::span<float> out) {
  expect(Phase::kReady, "state is read");
  const SessionUnit& of = unit(number);
  const std::optional<StateField> found = field_named(field);
  if (!found) {
    refuse_unit(fmt::format("a unit has no state '{}'", field),
                "see terrace_state_read() for the fields of each rule");
  }
  const auto size = static_cast<std::int64_t>(out.size());
  if (begin < 0 || size > of.elements || begin > of.elements - size) {
    refuse_unit(fmt::format("elements {} to {} are asked for, but unit {} has {}", begin,
                            begin + size, of.name, of.elements),
                "ask for elements that exist");
  }
  phase_ = Phase::kFailed;
  runtime_->drain();
  runtime_->read_state(*found, number, begin, out);
  phase_ = Phase::kReady;
}

void UnitSession::read_parameters(std::int32_t number, std::int64_t begin, std::span<Bf16> out) {
  constexpr std::size_t kPiece = std::size_t{1} << 16;
  expect(Phase::kReady, "parameters are read");
  unit(number);
  std::vector<float> piece;
  for (std::size_t at = 0; at < out.size(); at += kPiece) {
    piece.resize(std::min(kPiece, out.size() - at));
    read_state(number, "master", begin + static_cast<std::int64_t>(at), piece);
    std::ranges::transform(piece, out.begin() + static_cast<std::ptrdiff_t>(at),
                           [](float value) { return to_bf16_ties_away(value); });
  }
}

void UnitSession::pause(const std::string& directory) {
  expect(Phase::kReady, "the units are paused");
  const NvmeStoreOptions where = parking_of(directory, options_.nvme, runtime_->store_paths());
  phase_ = Phase::kFailed;
  runtime_->drain();
  phase_ = Phase::kReady;
  auto parked = std::make_unique<ParkedState>(where, runtime_->kept_pages(), *log_);
  runtime_->give_pages_back();
  parked_ = std::move(parked);
  phase_ = Phase::kPaused;
}

void UnitSession::resume() {
  if (phase_ != Phase::kPaused) {
    if (phase_ == Phase::kFailed) expect(Phase::kPaused, "the units are resumed");
    refuse_turn("units are resumed, but they are not paused",
                "pause them by terrace_units_pause() first");
  }
  try {
    runtime_->take_pages();
    parked_->read();
  } catch (...) {
    runtime_->give_pages_back();
    throw;
  }
  parked_.reset();
  phase_ = Phase::kReady;
}

std::string UnitSession::describe_ledger() const {
  if (phase_ == Phase::kPaused) expect(Phase::kReady, "the ledger is asked for");
  if (!plan_) expect(Phase::kPrepared, "the ledger is asked for");
  return ledger_text(plan_->ledger);
}

}  // namespace terrace
