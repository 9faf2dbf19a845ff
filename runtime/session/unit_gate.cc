#include "runtime/session/unit_gate.h"

#include <chrono>

#include "runtime/session/session_error.h"

namespace terrace {
namespace {

constexpr std::chrono::milliseconds kBetweenChecks(20);

}  // namespace

void UnitGate::run(const KernelContext& /*context*/, const ComputeTask& task,
                   const UnitMemory& memory) {
  std::unique_lock lock(mutex_);
  offer_ = {task, memory};
  turn_ = Turn::kOffered;
  changed_.notify_all();
  changed_.wait(lock, [&] { return is_closed_ || turn_ == Turn::kNobody; });
  if (turn_ == Turn::kNobody) return;
  throw SessionError(SessionProblem::kFailed, "the session was ended in the middle of a step", "");
}

UnitGate::Offer UnitGate::take(FunctionRef<void()> check) {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kBetweenChecks, [&] { return turn_ == Turn::kOffered; })) {
    lock.unlock();
    check();
    lock.lock();
  }
  turn_ = Turn::kTaken;
  return offer_;
}

void UnitGate::give_back() {
  const std::scoped_lock lock(mutex_);
  turn_ = Turn::kNobody;
  changed_.notify_all();
}

void UnitGate::close() {
  const std::scoped_lock lock(mutex_);
  is_closed_ = true;
  changed_.notify_all();
}

}  // namespace terrace
