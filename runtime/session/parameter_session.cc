#include "runtime/session/parameter_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/half.h"
#include "memory/host/host_limits.h"
#include "memory/host/thread_plan.h"
#include "memory/host/topology.h"
#include "runtime/session/gradient_sums.h"
#include "runtime/session/parameter_values.h"
#include "runtime/session/save_lock.h"
#include "runtime/session/scalar_range.h"
#include "runtime/session/session_error.h"

namespace terrace {
namespace {

[[noreturn]] void refuse_order(const std::string& what, const std::string& remedy) {
  throw SessionError(SessionProblem::kOrder, what, remedy);
}

[[noreturn]] void refuse_value(const std::string& what, const std::string& remedy) {
  throw SessionError(SessionProblem::kArgument, what, remedy);
}

std::span<const std::byte> memory_of(const SessionTensor& tensor) {
  return {tensor.data, static_cast<std::size_t>(tensor.elements) * size_of(tensor.dtype)};
}

std::vector<std::size_t> numbers_of(std::pair<std::size_t, std::size_t> range) {
  std::vector<std::size_t> numbers(range.second - range.first);
  std::iota(numbers.begin(), numbers.end(), range.first);
  return numbers;
}

}  // namespace

ParameterSession::ParameterSession(SessionOptions options, std::unique_ptr<Log> log)
    : options_(std::move(options)), log_(std::move(log)) {
  if (options_.threads && *options_.threads < 1) {
    refuse_value(fmt::format("threads is {}", *options_.threads), "it must be 0 or more");
  }
  if (options_.tier == StateTier::kNvme && options_.nvme.directories.empty()) {
    refuse_value("the state should live on NVMe, but no directory is named", "name one in nvme");
  }
  if (options_.tier == StateTier::kHost && !options_.nvme.directories.empty()) {
    refuse_value("the state should live on the host, but NVMe directories are named",
                 "leave them out, or set state_tier to TERRACE_TIER_AUTO");
  }
}

void ParameterSession::expect_open(const char* call) const {
  expect_awake(call);
  if (phase_ == Phase::kOpen && !has_failed_to_prepare_) return;
  refuse_order(fmt::format("{} after terrace_session_prepare()", call),
               "add all groups and tensors before that call, or make another session");
}

void ParameterSession::expect_ready(const char* call) const {
  if (phase_ == Phase::kReady) return;
  if (phase_ == Phase::kFailed) {
    throw SessionError(SessionProblem::kFailed,
                       fmt::format("{}: the session has failed before", call),
                       "load a saved state by terrace_load(), or destroy it");
  }
  if (phase_ == Phase::kStepping) {
    refuse_order(fmt::format("{} while a step is under way", call),
                 "end it by terrace_step_end() first");
  }
  expect_awake(call);
  refuse_order(fmt::format("{} before terrace_session_prepare()", call), "prepare the session");
}

void ParameterSession::expect_awake(const char* call) const {
  if (!is_paused_.load(std::memory_order_acquire)) return;
  refuse_order(fmt::format("{} while the session is paused", call),
               "take its memory again by terrace_resume()");
}

std::int64_t ParameterSession::steps() const {
  expect_awake("the steps are asked for");
  return progress_.step;
}

std::int32_t ParameterSession::add_group(std::string_view rule, std::span<const NamedValue> values,
                                         double weight_decay) {
  expect_open("a group is added");
  return table_.add_group(rule, values, weight_decay);
}

std::int32_t ParameterSession::add_tensor(SessionTensor tensor) {
  expect_open("a tensor is added");
  if (tensor.place.is_gpu()) {
    gpus_.check(fmt::format("tensor {}", tensor.name), tensor.place, memory_of(tensor));
  }
  return table_.add_tensor(std::move(tensor));
}

void ParameterSession::prepare() {
  expect_open("the session is prepared");
  if (std::ranges::all_of(table_.tensors(), &SessionTensor::is_frozen)) {
    refuse_order("the session has no tensor to train", "add one by terrace_tensor_add()");
  }
  has_failed_to_prepare_ = true;
  if (std::ranges::any_of(table_.tensors(), [](const SessionTensor& tensor) {
        return tensor.place.is_gpu() && !tensor.is_frozen;
      })) {
    gpus_.need_staging();
  }
  const HostLimits limits = read_host_limits();
  const ThreadPlan plan = plan_threads(options_.threads, limits, read_topology());
  workers_.emplace(options_.threads.value_or(plan.compute));
  const std::size_t free = limits.usable_bytes();
  home_ = std::make_unique<StateHome>(
      table_,
      StateHomeOptions{.tier = options_.tier,
                       .host_budget_bytes = options_.host_memory_bytes.value_or(free / 10 * 9),
                       .copy_bytes = gpus_.staging_bytes(),
                       .nvme = options_.nvme},
      *log_);
  gpus_.take_staging();
  memory_ = std::make_unique<ParameterMemory>(table_, gpus_);
  marks_ =
      std::make_unique<ParameterMarks>(ParameterMarks::Parts{table_, *home_, *workers_, *memory_});
  memory_->order_after_callers();
  fill_masters(numbers_of({0, home_->chunks().size()}), StateAccess::kWrite);
  progress_.updates.assign(table_.tensors().size(), 0);
  additions_.assign(table_.tensors().size(), 0);
  updates_ = std::make_unique<UpdateThread>(
      UpdateThread::Parts{table_, *home_, *workers_, *marks_, *memory_});
  phase_ = Phase::kReady;
  has_failed_to_prepare_ = false;
  waited_for_.store(updates_.get(), std::memory_order_release);
}

// Sets the masters from the parameters. A pass that only writes also zeroes the rule's slots; a
// pass that updates leaves them.
void ParameterSession::fill_masters(std::span<const std::size_t> chunks, StateAccess access) {
  const SettledCopies settled = memory_->settled();
  home_->for_each(chunks, access, [&](std::size_t i, std::span<std::byte> state) {
    const StateChunk& chunk = home_->chunks()[i];
    if (access == StateAccess::kWrite) std::memset(state.data(), 0, state.size());
    if (chunk.format.master == MasterForm::kParameter) return;
    const std::size_t begin = chunk.layout().master.begin;
    const std::span<std::byte> parameters = memory_->read(chunk);
    read_parameter(table_.tensor(chunk.tensor).dtype, parameters,
                   reinterpret_cast<float*>(state.data() + begin));
    marks_->take(i, parameters);
  });
}

void ParameterSession::check_gradient(std::int32_t tensor, const TensorView& gradient,
                                      const GpuPlace& place) {
  const bool arrives = phase_ == Phase::kStepping && gradients_arrive_;
  if (!arrives) expect_ready("a gradient is added");
  const SessionTensor& of = table_.tensor(tensor);
  if (arrives && stepping_[static_cast<std::size_t>(tensor)]) {
    refuse_order(fmt::format("a gradient of tensor {} is added, but its update has begun", of.name),
                 "call terrace_gradient_complete() when all of it is added");
  }
  if (of.is_frozen) {
    refuse_value(fmt::format("a gradient is added to the frozen tensor {}", of.name),
                 "leave it out, or add the tensor without TERRACE_TENSOR_FROZEN");
  }
  if (gradient.elements() != of.elements) {
    refuse_value(fmt::format("a gradient of {} elements is added to tensor {}, which has {} "
                             "elements",
                             gradient.elements(), of.name, of.elements),
                 "give the whole gradient");
  }
  if (!place.is_gpu()) return;
  const std::string what = fmt::format("a gradient of tensor {}", of.name);
  if (place.device != of.place.device) {
    refuse_value(fmt::format("{} is memory of GPU {}, but the tensor is {}", what, place.device,
                             of.place.is_gpu() ? fmt::format("memory of GPU {}", of.place.device)
                                               : std::string("memory of the host")),
                 "copy it to where the tensor is, or to the host");
  }
  try {
    gpus_.check(what, place, {gradient.data, gradient.size_bytes()});
  } catch (const DeviceError&) {
    additions_[static_cast<std::size_t>(tensor)] = 0;  // as if a copy had failed
    throw;
  }
}

void ParameterSession::add_gradient(std::int32_t tensor, const TensorView& gradient,
                                    const GpuPlace& place) {
  check_gradient(tensor, gradient, place);
  const auto i = static_cast<std::size_t>(tensor);
  // While a step is under way, the workers belong to the updates.
  WorkerArena* const workers = phase_ == Phase::kStepping ? nullptr : &*workers_;
  if (additions_[i] > 0) {
    take_in_borrowed(tensor);
  } else {
    home_->borrow_gradient(tensor, nullptr);
  }
  const std::int64_t additions = additions_[i];
  additions_[i] = 0;  // a sum with a part of a gradient does not count
  if (place.is_gpu()) {
    const GpuGradient of_gpu = {
        .elements = gradient, .place = place, .name = table_.tensor(tensor).name};
    add_gpu_gradient(gpus_, workers, home_->gradient(tensor), of_gpu, additions == 0);
  } else {
    terrace::add_gradient(workers, home_->gradient(tensor), gradient, additions == 0);
  }
  additions_[i] = additions + 1;
}

bool ParameterSession::borrow_gradient(std::int32_t tensor, const TensorView& gradient,
                                       const GpuPlace& place) {
  check_gradient(tensor, gradient, place);
  std::int64_t& additions = additions_[static_cast<std::size_t>(tensor)];
  if (place.is_gpu() || gradient.dtype != DType::kF32 || additions > 0) {
    add_gradient(tensor, gradient, place);
    return false;
  }
  home_->borrow_gradient(tensor, gradient.as<float>());
  additions = 1;
  return true;
}

void ParameterSession::take_in_borrowed(std::int32_t tensor) {
  if (!home_->has_borrowed(tensor)) return;
  const std::span<float> borrowed = home_->gradient(tensor);
  home_->borrow_gradient(tensor, nullptr);
  terrace::add_gradient(phase_ == Phase::kStepping ? nullptr : &*workers_, home_->gradient(tensor),
                        view(borrowed), true);
}

void ParameterSession::complete_gradient(std::int32_t tensor) {
  if (phase_ != Phase::kStepping || !gradients_arrive_) {
    if (phase_ != Phase::kStepping) expect_ready("a gradient is complete");
    refuse_order("a gradient is complete, but no step that waits for gradients is under way",
                 "begin one with TERRACE_STEP_GRADIENTS_ARRIVE");
  }
  const std::string& name = table_.tensor(tensor).name;
  const auto i = static_cast<std::size_t>(tensor);
  if (additions_[i] == 0) {
    throw SessionError(SessionProblem::kMissingGradient,
                       fmt::format("the gradient of tensor {} is reported as complete, but none "
                                   "was added",
                                   name),
                       "add it by terrace_gradient_add() first");
  }
  if (stepping_[i]) {
    refuse_order(fmt::format("the gradient of tensor {} is reported as complete twice", name),
                 "report it once");
  }
  memory_->order_after_caller(tensor);
  stepping_[i] = true;
  updates_->complete(tensor);
}

double ParameterSession::square_sum_of(std::int32_t tensor) {
  expect_ready("a gradient is squared");
  table_.tensor(tensor);
  if (additions_[static_cast<std::size_t>(tensor)] == 0) return 0;
  SquareSums sums(*workers_);
  sums.add(home_->gradient(tensor));
  return sums.sum();
}

void ParameterSession::discard_gradients() {
  expect_ready("gradients are forgotten");
  forget_gradients();
}

void ParameterSession::forget_gradients() {
  for (std::size_t i = 0; i < additions_.size(); ++i) {
    additions_[i] = 0;
    home_->borrow_gradient(static_cast<std::int32_t>(i), nullptr);
  }
}

void ParameterSession::check_scalars(const SessionStepOptions& options) const {
  if (options.learning_rates.size() != table_.groups().size()) {
    refuse_value(fmt::format("a step has {} learning rates, but the session has {} groups",
                             options.learning_rates.size(), table_.groups().size()),
                 "give one for each group");
  }
  for (const double rate : options.learning_rates) {
    if (fits_float(rate)) continue;
    refuse_value(fmt::format("a learning rate is {}", rate), "it must be at least 0 and fit fp32");
  }
  if (!fits_float(options.max_grad_norm)) {
    refuse_value(fmt::format("max_grad_norm is {}", options.max_grad_norm),
                 "it must be more than 0 and fit fp32, or be 0 for no clipping");
  }
  if (options.gradients_arrive && options.max_grad_norm != 0) {
    refuse_value(fmt::format("max_grad_norm is {}, but gradients arrive while the step updates",
                             options.max_grad_norm),
                 "the norm is known only after the last gradient: begin the step then, or set 0");
  }
  if (!std::isfinite(options.known_norm) || options.known_norm < 0 ||
      (options.gradients_arrive && options.known_norm != 0)) {
    refuse_value(fmt::format("known_norm is {}", options.known_norm),
                 "it must be the norm over all gradients: more than 0, finite, and not for a step "
                 "whose gradients arrive; or be 0");
  }
  if (!fits_float(options.gradient_scale) || static_cast<float>(options.gradient_scale) == 0) {
    refuse_value(fmt::format("gradient_scale is {}", options.gradient_scale),
                 "it must be more than 0 and fit fp32, or be 0 for 1");
  }
}

SessionStep ParameterSession::make_step(const SessionStepOptions& options) const {
  SessionStep step = {.step = progress_.step + 1,
                      .tensors = {},
                      .max_grad_norm = options.max_grad_norm,
                      .gradient_scale = options.gradient_scale,
                      .known_norm = options.known_norm,
                      .gradients_arrive = options.gradients_arrive};
  for (std::size_t i = 0; i < table_.tensors().size(); ++i) {
    const SessionTensor& tensor = table_.tensors()[i];
    step.tensors.push_back(
        {.has_gradient = additions_[i] > 0 && !options.gradients_arrive,
         .updates = progress_.updates[i] + 1,
         .learning_rate = options.learning_rates[static_cast<std::size_t>(tensor.group)]});
  }
  if (!options.gradients_arrive) check_missing(step, options.skips_missing);
  return step;
}

void ParameterSession::check_missing(const SessionStep& step, bool skips_missing) const {
  const std::string* missing = nullptr;
  std::size_t missing_count = 0;
  for (std::size_t i = 0; i < table_.tensors().size(); ++i) {
    const SessionTensor& tensor = table_.tensors()[i];
    if (tensor.is_frozen || additions_[i] > 0) continue;
    ++missing_count;
    if (missing == nullptr) missing = &tensor.name;
  }
  const bool has_any =
      std::ranges::any_of(additions_, [](std::int64_t additions) { return additions > 0; });
  if (missing_count > 0 && (!skips_missing || !has_any)) {
    throw SessionError(
        SessionProblem::kMissingGradient,
        fmt::format("step {}: {} tensors have no gradient, the first is {}", step.step,
                    missing_count, *missing),
        has_any ? "add them, or set TERRACE_STEP_SKIP_MISSING to leave such tensors as they are"
                : "add gradients by terrace_gradient_add()");
  }
}

void ParameterSession::begin_step(const SessionStepOptions& options) {
  expect_ready("a step is begun");
  check_scalars(options);
  SessionStep step = make_step(options);
  stepping_.clear();
  for (const TensorStep& tensor : step.tensors) stepping_.push_back(tensor.has_gradient);
  gradients_arrive_ = step.gradients_arrive;
  memory_->order_after_callers();
  updates_->begin(std::move(step));
  phase_ = Phase::kStepping;
}

UpdateThread& ParameterSession::updates_for(std::int32_t tensor) {
  expect_awake("a step is waited for");
  UpdateThread* const updates = waited_for_.load(std::memory_order_acquire);
  if (updates == nullptr) {
    refuse_order("a step is waited for before terrace_session_prepare()", "prepare the session");
  }
  table_.tensor(tensor);
  return *updates;
}

// The update thread waits for gradients until it is told that no more arrive, so its step is also
// ended if a gradient cannot be completed.
void ParameterSession::complete_all() {
  try {
    for (std::size_t i = 0; i < stepping_.size(); ++i) {
      if (additions_[i] > 0 && !stepping_[i]) complete_gradient(static_cast<std::int32_t>(i));
    }
  } catch (...) {
    try {
      updates_->end();
    } catch (const std::exception&) {
      phase_ = Phase::kFailed;  // only the first error is reported
    }
    phase_ = Phase::kFailed;
    throw;
  }
}

SessionStepResult ParameterSession::end_step() {
  if (phase_ != Phase::kStepping) {
    expect_ready("a step is ended");
    refuse_order("no step is under way", "begin one by terrace_step_begin()");
  }
  if (gradients_arrive_) complete_all();
  // The session counts as failed until it is known that nothing was updated.
  phase_ = Phase::kFailed;
  SessionStepResult result;
  try {
    result = updates_->end();
  } catch (const NotFinite&) {
    forget_gradients();
    if (!updates_->has_updated()) phase_ = Phase::kReady;
    throw;
  } catch (const SessionError&) {
    phase_ = Phase::kReady;
    throw;
  }
  phase_ = Phase::kReady;
  if (!updates_->has_updated()) {
    throw SessionError(SessionProblem::kMissingGradient,
                       fmt::format("step {} ended without a gradient", result.step),
                       "add gradients by terrace_gradient_add()");
  }
  progress_.step = result.step;
  for (std::size_t i = 0; i < stepping_.size(); ++i) {
    if (stepping_[i]) ++progress_.updates[i];
  }
  forget_gradients();
  last_step_ = result;
  update_seconds_ += result.seconds;
  return result;
}

void ParameterSession::adopt_parameter(std::int32_t tensor) {
  expect_ready("a parameter is adopted");
  const SessionTensor& of = table_.tensor(tensor);
  if (of.is_frozen || of.dtype == DType::kF32) return;  // no master to change
  memory_->order_after_caller(tensor);
  phase_ = Phase::kFailed;
  fill_masters(numbers_of(home_->chunks_of(tensor)), StateAccess::kUpdate);
  phase_ = Phase::kReady;
}

void ParameterSession::pause(const std::string& directory) {
  expect_ready("the session is paused");
  if (!loans_.is_zero()) {
    refuse_order("the session is paused while DLPack leases of its memory exist",
                 "delete the tensors that hold them first");
  }
  std::vector<std::int32_t> gradients;
  for (std::size_t i = 0; i < additions_.size(); ++i) {
    if (additions_[i] == 0) continue;
    take_in_borrowed(static_cast<std::int32_t>(i));
    gradients.push_back(static_cast<std::int32_t>(i));
  }
  home_->pause(directory, gradients);
  gpus_.give_staging_back();
  phase_ = Phase::kPaused;
  is_paused_.store(true, std::memory_order_release);
}

void ParameterSession::resume() {
  if (phase_ != Phase::kPaused) {
    refuse_order("a session is resumed, but it is not paused", "pause it by terrace_pause() first");
  }
  gpus_.take_staging();
  try {
    home_->resume();
  } catch (...) {
    gpus_.give_staging_back();
    throw;
  }
  phase_ = Phase::kReady;
  is_paused_.store(false, std::memory_order_release);
}

void ParameterSession::save(const std::string& directory) {
  expect_ready("state is saved");
  make_state_directory(directory);
  const SaveLock lock(directory, *log_);
  memory_->order_masters_after_callers();
  const SettledCopies settled = memory_->settled();
  save_session_state(directory, {table_, *home_, *memory_}, progress_);
}

void ParameterSession::load(const std::string& directory) {
  if (phase_ != Phase::kFailed) expect_ready("state is loaded");
  SavedSessionState saved(directory, table_);
  memory_->order_after_callers();
  phase_ = Phase::kFailed;
  const SettledCopies settled = memory_->settled();
  saved.load(*home_, *memory_);
  marks_->take_all();
  progress_ = saved.progress();
  forget_gradients();
  phase_ = Phase::kReady;
}

}  // namespace terrace
