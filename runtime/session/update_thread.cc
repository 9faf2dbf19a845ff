#include "runtime/session/update_thread.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "optim/grad_norm.h"
#include "runtime/session/gradient_sums.h"
#include "runtime/session/scalar_range.h"
#include "runtime/session/session_error.h"

namespace terrace {

UpdateThread::UpdateThread(const Parts& parts) : parts_(parts) {
  thread_ = std::thread([this] { serve(); });
}

UpdateThread::~UpdateThread() {
  {
    const std::scoped_lock lock(mutex_);
    stops_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void UpdateThread::begin(SessionStep step) {
  auto progress = std::make_shared<Progress>();
  progress->is_open = step.gradients_arrive;
  for (std::size_t i = 0; i < step.tensors.size(); ++i) {
    const bool may_come = step.gradients_arrive && !parts_.table.tensors()[i].is_frozen;
    progress->complete.push_back(!may_come);
    progress->updated.push_back(!may_come && !step.tensors[i].has_gradient);
  }
  const std::scoped_lock lock(mutex_);
  arrived_.clear();
  step_ = std::move(step);
  progress_ = std::move(progress);
  result_ = {};
  is_under_way_ = true;
  changed_.notify_all();
}

void UpdateThread::complete(std::int32_t tensor) {
  const std::scoped_lock lock(mutex_);
  progress_->complete[static_cast<std::size_t>(tensor)] = true;
  arrived_.push_back(tensor);
  changed_.notify_all();
}

UpdateThread::SharedProgress UpdateThread::step_under_way() {
  const std::scoped_lock lock(mutex_);
  return is_under_way_ ? progress_ : nullptr;
}

void UpdateThread::wait_for(const SharedProgress& step, std::int32_t tensor) {
  if (step == nullptr) return;
  std::unique_lock lock(mutex_);
  const auto i = static_cast<std::size_t>(tensor);
  if (!step->complete[i]) {
    throw SessionError(SessionProblem::kOrder,
                       fmt::format("tensor {} is waited for before its gradient is complete",
                                   parts_.table.tensor(tensor).name),
                       "call terrace_gradient_complete() or terrace_step_end() first");
  }
  changed_.wait(lock, [&] { return step->is_finished || step->updated[i]; });
  if (step->failure != nullptr && !step->updated[i]) std::rethrow_exception(step->failure);
}

double UpdateThread::wait_for_norm(const SharedProgress& step) {
  if (step == nullptr) {
    throw SessionError(SessionProblem::kOrder, "no step is under way", "begin one first");
  }
  std::unique_lock lock(mutex_);
  if (step->is_open) {
    throw SessionError(SessionProblem::kOrder, "the norm is waited for while gradients arrive",
                       "terrace_step_end() returns it");
  }
  changed_.wait(lock, [&] { return step->is_finished || step->norm; });
  if (!step->norm && step->failure != nullptr) std::rethrow_exception(step->failure);
  return step->norm.value_or(0);
}

SessionStepResult UpdateThread::end() {
  std::unique_lock lock(mutex_);
  if (progress_->is_open) {
    progress_->is_open = false;
    progress_->complete.assign(progress_->complete.size(), true);
    changed_.notify_all();
  }
  changed_.wait(lock, [&] { return is_idle(); });
  is_under_way_ = false;
  if (progress_->failure != nullptr) std::rethrow_exception(progress_->failure);
  return result_;
}

bool UpdateThread::has_updated() {
  const std::scoped_lock lock(mutex_);
  return progress_ != nullptr && progress_->has_updated;
}

void UpdateThread::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stops_ || !is_idle(); });
    if (is_idle()) return;
    lock.unlock();
    std::exception_ptr failure;
    try {
      run(step_);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    progress_->failure = std::move(failure);
    progress_->is_finished = true;
    changed_.notify_all();
  }
}

std::vector<std::size_t> UpdateThread::chunks_of(const SessionStep& step) const {
  std::vector<std::size_t> chunks;
  for (std::size_t i = 0; i < parts_.home.chunks().size(); ++i) {
    const auto tensor = static_cast<std::size_t>(parts_.home.chunks()[i].tensor);
    if (step.tensors[tensor].has_gradient || step.gradients_arrive) chunks.push_back(i);
  }
  return chunks;
}

void UpdateThread::tell_norm(double norm) {
  const std::scoped_lock lock(mutex_);
  progress_->norm = norm;
  changed_.notify_all();
}

void UpdateThread::run(SessionStep& step) {
  const auto begin = std::chrono::steady_clock::now();
  const SettledCopies settled = parts_.memory.settled();
  const double norm = step.gradients_arrive ? run_arriving(step) : run_whole(step);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  SessionStepResult result = {.step = step.step,
                              .gradient_norm = norm,
                              .clip_coefficient = clip_coefficient(norm, step.max_grad_norm),
                              .seconds = seconds.count()};
  for (std::size_t i = 0; i < step.tensors.size(); ++i) {
    const bool is_frozen = parts_.table.tensors()[i].is_frozen;
    if (!is_frozen && !step.tensors[i].has_gradient) ++result.skipped_tensors;
  }
  const std::scoped_lock lock(mutex_);
  result_ = result;
}

double UpdateThread::run_whole(const SessionStep& step) {
  const std::vector<std::size_t> chunks = chunks_of(step);
  parts_.marks.check(chunks);
  const double norm = step.known_norm > 0 ? step.known_norm : take_norm(step);
  const float clip = clip_coefficient(norm, step.max_grad_norm);
  const float scale = static_cast<float>(step.gradient_scale) * clip;
  // No scaled gradient is larger than the norm of all gradients.
  if (scale == 0 || !fits_float(norm * clip)) {
    throw NotFinite(fmt::format("step {} scales gradients by {} to a norm of {}, which fp32 cannot "
                                "represent",
                                step.step, step.gradient_scale * clip, norm * clip),
                    "nothing was updated: look at gradient_scale and max_grad_norm, and at the "
                    "gradients");
  }
  tell_norm(norm);
  update(step, scale, chunks);
  return norm;
}

std::vector<std::int32_t> UpdateThread::arrivals() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stops_ || !arrived_.empty() || !progress_->is_open; });
  return std::exchange(arrived_, {});
}

// Updates tensors as their gradients arrive. All that have arrived while the last tensors were
// updated are updated in one pass, so that drives stream the state of several tensors together.
double UpdateThread::run_arriving(SessionStep& step) {
  parts_.marks.check(chunks_of(step));
  SquareSums sums(parts_.workers);
  std::vector<std::vector<double>> squares(step.tensors.size());
  for (;;) {
    const std::vector<std::int32_t> batch = arrivals();
    if (batch.empty()) break;
    std::vector<std::size_t> chunks;
    for (const std::int32_t tensor : batch) {
      const auto i = static_cast<std::size_t>(tensor);
      step.tensors[i].has_gradient = true;
      squares[i] = sums.partials_of(parts_.home.gradient(tensor));
      SquareSums of_tensor(parts_.workers);
      of_tensor.add_partials(squares[i]);
      if (!fits_float(step.gradient_scale * of_tensor.norm())) refuse_gradient(step, i);
      const auto [first, last] = parts_.home.chunks_of(tensor);
      for (std::size_t chunk = first; chunk < last; ++chunk) chunks.push_back(chunk);
    }
    update(step, static_cast<float>(step.gradient_scale), chunks);
  }
  for (const std::vector<double>& partials : squares) sums.add_partials(partials);
  const double norm = step.gradient_scale * sums.norm();
  tell_norm(norm);
  return norm;
}

void UpdateThread::refuse_gradient(const SessionStep& step, std::size_t tensor) {
  throw NotFinite(
      fmt::format("the gradient of {} in step {} is not finite",
                  parts_.table.tensors()[tensor].name, step.step),
      has_updated() ? "other parameters are already updated: go on from saved state, by "
                      "terrace_load(), with a lower learning rate or loss scale"
                    : "nothing was updated: go on with the next batch, or lower the learning rate "
                      "or the loss scale");
}

double UpdateThread::take_norm(const SessionStep& step) {
  SquareSums sums(parts_.workers);
  for (std::size_t i = 0; i < step.tensors.size(); ++i) {
    if (!step.tensors[i].has_gradient) continue;
    sums.add(parts_.home.gradient(static_cast<std::int32_t>(i)));
    if (!std::isfinite(sums.norm())) refuse_gradient(step, i);
  }
  return step.gradient_scale * sums.norm();
}

void UpdateThread::update(const SessionStep& step, float gradient_scale,
                          std::span<const std::size_t> chunks) {
  {
    const std::scoped_lock lock(mutex_);
    progress_->has_updated = true;
  }
  parts_.home.for_each(
      chunks, StateAccess::kUpdate, [&](std::size_t i, std::span<std::byte> state) {
        const StateChunk& chunk = parts_.home.chunks()[i];
        const TensorStep& of = step.tensors[static_cast<std::size_t>(chunk.tensor)];
        const SessionGroup& group = parts_.table.group_of(parts_.table.tensor(chunk.tensor));
        const StepScalars scalars = {
            .learning_rate = static_cast<float>(of.learning_rate),
            .gradient_scale = gradient_scale,
            .of_rule = group.rule->step_scalars(group.options, of.updates, of.learning_rate),
            .step = static_cast<std::uint32_t>(step.step)};
        const bool is_read = chunk.format.master == MasterForm::kParameter;
        const std::span<std::byte> parameters =
            is_read ? parts_.memory.read(chunk) : parts_.memory.room(chunk);
        update_chunk(chunk, state, parameters, scalars);
        parts_.marks.take(i, parameters);
        parts_.memory.write_back(chunk);
        if (i + 1 != parts_.home.chunks_of(chunk.tensor).second) return;
        parts_.memory.wait();
        const std::scoped_lock lock(mutex_);
        progress_->updated[static_cast<std::size_t>(chunk.tensor)] = true;
        changed_.notify_all();
      });
}

void UpdateThread::update_chunk(const StateChunk& chunk, std::span<std::byte> state,
                                std::span<std::byte> parameters, const StepScalars& scalars) {
  const SessionTensor& tensor = parts_.table.tensor(chunk.tensor);
  const SessionGroup& group = parts_.table.group_of(tensor);
  const auto begin = static_cast<std::size_t>(chunk.begin);
  ParameterUpdate update;
  update.gradient = view(
      parts_.home.gradient(chunk.tensor).subspan(begin, static_cast<std::size_t>(chunk.elements)));
  update.parameter = view(parameters.data(), tensor.dtype, chunk.elements);
  const StateLayout layout = chunk.layout();
  for (std::size_t slot = 0; slot < group.rule->slots.size(); ++slot) {
    update.slots.at(slot) =
        view(state.data() + layout.slots.at(slot).begin, DType::kF32, chunk.elements);
  }
  update.master = chunk.format.master == MasterForm::kParameter
                      ? update.parameter
                      : view(state.data() + layout.master.begin, DType::kF32, chunk.elements);
  update.options = group.options;
  update.scalars = &scalars;
  KernelContext context;
  context.workers = &parts_.workers;
  group.rule->cpu(context, update);
}

}  // namespace terrace
