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
#include "runtime/session/parameter_table.h"
#include "runtime/session/state_home.h"

namespace terrace {

// What a step does to one tensor.
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
};

struct SessionStepResult {
  std::int64_t step = 0;
  std::uint32_t skipped_tensors = 0;
  double gradient_norm = 0;  // before clipping
  double clip_coefficient = 1;
  double seconds = 0;
};

// Runs steps, one at a time, on a thread of its own: checks the parameters, takes the norm of all
// gradients, and updates tensor by tensor. begin() and end() are called in turns by one thread;
// the waiting calls may be made by any.
class UpdateThread {
 public:
  struct Parts {
    const ParameterTable& table;
    StateHome& home;
    WorkerArena& workers;  // used by nobody else while a step is under way
    ParameterMarks& marks;
  };
  explicit UpdateThread(const Parts& parts);
  // Waits for a step that is under way.
  ~UpdateThread();
  UpdateThread(const UpdateThread&) = delete;
  UpdateThread& operator=(const UpdateThread&) = delete;

  // How far a step is, for those who wait for it; they may have it longer than the step lasts.
  struct Progress {
    bool is_finished = false;
    std::vector<bool> updated;  // of each tensor
    std::optional<double> norm;
    std::exception_ptr failure;
  };
  using SharedProgress = std::shared_ptr<const Progress>;

  void begin(SessionStep step);
  // Of the step that is under way; null where none is.
  SharedProgress step_under_way();
  // Waits until the step has updated the tensor; returns at once where there is no step. Throws
  // what failed the step, also after end().
  void wait_for(const SharedProgress& step, std::int32_t tensor);
  void wait_for(std::int32_t tensor) { wait_for(step_under_way(), tensor); }
  // Waits for the norm of the step. Throws SessionError where there is none, and what failed it.
  double wait_for_norm(const SharedProgress& step);
  double wait_for_norm() { return wait_for_norm(step_under_way()); }
  // Waits for the whole step. Throws what failed it: SessionError (kParameterChanged) and NotFinite
  // before anything was updated; IoError, CorruptData after some was.
  SessionStepResult end();

 private:
  bool is_idle() const { return progress_ == nullptr || progress_->is_finished; }
  void serve();
  void run(const SessionStep& step);
  double take_norm(const SessionStep& step);
  void update(const SessionStep& step, float gradient_scale, std::span<const std::size_t> chunks);
  void update_chunk(const StateChunk& chunk, std::span<std::byte> state,
                    const StepScalars& scalars);

  const Parts parts_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  bool is_under_way_ = false;  // from begin() to end()
  bool stops_ = false;
  // Of the last step that was begun, null before the first; what it points to is guarded, too. The
  // thread has nothing to do where it is null or finished.
  std::shared_ptr<Progress> progress_;
  SessionStepResult result_;
  SessionStep step_;  // written by begin() while the thread is idle
  std::thread thread_;
};

}  // namespace terrace
