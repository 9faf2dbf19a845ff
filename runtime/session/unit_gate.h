#pragma once

#include <condition_variable>
#include <mutex>

#include "base/function_ref.h"
#include "runtime/model/step_compute.h"

namespace terrace {

// Hands the tasks of a step to a trainer that computes on a thread of its own: the compute lane
// offers a task with its memory and waits, the trainer takes it, computes, and gives it back.
class UnitGate final : public StepCompute {
 public:
  struct Offer {
    ComputeTask task;
    UnitMemory memory;
  };

  // Offers a task and waits until it is given back. Called by the compute lane. Throws once the
  // gate is closed.
  void run(const KernelContext& context, const ComputeTask& task,
           const UnitMemory& memory) override;

  // Waits for the next task and returns it. Called by the trainer. While it waits, it calls `check`
  // again and again, so that if a lane has failed, the error that `check` throws ends the wait.
  Offer take(FunctionRef<void()> check);
  // Gives back the task that was taken last, which is computed.
  void give_back();
  // Ends the lane's wait. Nothing is offered after it.
  void close();

 private:
  enum class Turn { kNobody, kOffered, kTaken };

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  Turn turn_ = Turn::kNobody;
  bool is_closed_ = false;
  Offer offer_;
};

}  // namespace terrace
