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

  // By the compute lane. Throws once the gate is closed.
  void run(const KernelContext& context, const ComputeTask& task,
           const UnitMemory& memory) override;

  // By the trainer: waits for the next task. While it waits, `check` is called again and again, so
  // that a lane that has failed ends the wait by what `check` throws.
  Offer take(FunctionRef<void()> check);
  // The task that was taken last is computed.
  void give_back();
  // Ends what the lane waits for. Nothing is offered after it.
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
