#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "memory/host/worker_arena.h"
#include "runtime/session/parameter_marks.h"
#include "runtime/session/parameter_memory.h"
#include "runtime/session/parameter_table.h"
#include "runtime/session/state_home.h"

namespace terrace {

// The work of a step on one tensor.
struct TensorStep {
  bool has_gradient = false;  // else the tensor is left as it is
  std::int64_t updates = 1;   // of the tensor, this one included
  double learning_rate = 0;
};

struct SessionStep {
  std::int64_t step = 1;
  std::vector<TensorStep> tensors;
  double max_grad_norm = 0;  // 0: gradients are not clipped
  double gradient_scale = 1;
  double known_norm = 0;  // over all gradients, scaled, which are finite; 0: the step takes it
  // Whether gradients become complete while the step runs: then no tensor has a gradient at the
  // start, and nothing is clipped.
  bool gradients_arrive = false;
};

struct SessionStepResult {
  std::int64_t step = 0;
  std::uint32_t skipped_tensors = 0;
  double gradient_norm = 0;  // before clipping
  double clip_coefficient = 1;
  double seconds = 0;
};

// Runs steps, one at a time, on a thread of its own: checks the parameters, takes the norm of all
// gradients, and updates tensor by tensor. Where gradients arrive it updates each tensor as soon as
// its gradient is complete. One thread calls begin(), complete() and end(), with begin() and end()
// in turns. Any thread may make the waiting calls.
class UpdateThread {
 public:
  struct Parts {
    const ParameterTable& table;
    StateHome& home;
    WorkerArena& workers;  // used by nobody else while a step is under way
    ParameterMarks& marks;
    ParameterMemory& memory;
  };
  explicit UpdateThread(const Parts& parts);
  // Waits for a step that is under way.
  ~UpdateThread();
  UpdateThread(const UpdateThread&) = delete;
  UpdateThread& operator=(const UpdateThread&) = delete;

  // The progress of a step, for threads that wait for it. They may keep it longer than the step
  // lasts.
  struct Progress {
    bool is_finished = false;
    bool is_open = false;      // gradients may still arrive
    bool has_updated = false;  // the update of a tensor has begun
    // For each tensor:
    std::vector<bool> complete;  // it is known that the gradient is complete, or that there is none
    std::vector<bool> updated;
    std::optional<double> norm;
    std::exception_ptr failure;
  };
  using SharedProgress = std::shared_ptr<const Progress>;

  void begin(SessionStep step);
  // Declares the tensor's gradient complete, in a step whose gradients arrive.
  void complete(std::int32_t tensor);
  // Returns the progress of the step that is under way; null where none is.
  SharedProgress step_under_way();
  // Waits until the step has updated the tensor; returns at once where there is no step. Throws the
  // error that failed the step, also after end(), and SessionError where the gradient of the tensor
  // is not complete.
  void wait_for(const SharedProgress& step, std::int32_t tensor);
  void wait_for(std::int32_t tensor) { wait_for(step_under_way(), tensor); }
  // Waits for the norm of the step. Throws SessionError where there is no step and where gradients
  // still arrive, and the error that failed the step.
  double wait_for_norm(const SharedProgress& step);
  double wait_for_norm() { return wait_for_norm(step_under_way()); }
  // Waits for the whole step; no further gradient arrives. Throws the error that failed it.
  // SessionError (kParameterChanged) comes before anything was updated, and so does NotFinite,
  // unless gradients arrived. IoError and CorruptData come after some tensors were updated,
  // DeviceError before or after.
  SessionStepResult end();
  // Returns whether the last step has updated anything, also where it failed.
  bool has_updated();

 private:
  bool is_idle() const { return progress_ == nullptr || progress_->is_finished; }
  void serve();
  void run(SessionStep& step);
  double run_whole(const SessionStep& step);
  double run_arriving(SessionStep& step);
  // Waits for gradients, and returns the tensors whose gradients have arrived since the last call.
  // Empty: no more will arrive.
  std::vector<std::int32_t> arrivals();
  std::vector<std::size_t> chunks_of(const SessionStep& step) const;
  void tell_norm(double norm);
  [[noreturn]] void refuse_gradient(const SessionStep& step, std::size_t tensor);
  double take_norm(const SessionStep& step);
  void update(const SessionStep& step, float gradient_scale, std::span<const std::size_t> chunks);
  void update_chunk(const StateChunk& chunk, std::span<std::byte> state,
                    std::span<std::byte> parameters, const StepScalars& scalars);

  const Parts parts_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  bool is_under_way_ = false;  // from begin() to end()
  bool stops_ = false;
  // The progress of the last step that was begun, null before the first. The object that it points
  // to is guarded, too. The thread has nothing to do where it is null or finished.
  std::shared_ptr<Progress> progress_;
  SessionStepResult result_;
  std::vector<std::int32_t> arrived_;  // tensors that the thread has not taken yet
  SessionStep step_;                   // written by begin() while the thread is idle
  std::thread thread_;
};

}  // namespace terrace
