#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "memory/host/worker_arena.h"
#include "memory/tensor.h"
#include "runtime/session/gpu_memory.h"
#include "runtime/session/memory_loan.h"
#include "runtime/session/parameter_marks.h"
#include "runtime/session/parameter_memory.h"
#include "runtime/session/parameter_table.h"
#include "runtime/session/state_files.h"
#include "runtime/session/state_home.h"
#include "runtime/session/update_thread.h"

namespace terrace {

struct SessionOptions {
  std::optional<int> threads = {};                    // unset: as many as may be used
  std::optional<std::size_t> host_memory_bytes = {};  // unset: nine tenths of the free memory
  StateTier tier = StateTier::kAuto;
  NvmeStoreOptions nvme = {};
};

struct SessionStepOptions {
  bool skips_missing = false;          // tensors without a gradient are left as they are
  bool gradients_arrive = false;       // complete_gradient() starts updates one by one
  std::vector<double> learning_rates;  // of each group
  double max_grad_norm = 0;
  double gradient_scale = 1;
  double known_norm = 0;  // over all gradients, scaled; 0: the step takes it
};

// Elements [begin, begin + count) of a tensor.
struct FieldRange {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

// Updates parameters that another trainer owns and computes the gradients of; the state of the
// optimizer lives in host memory or on NVMe. It offers the calls of runtime/capi/terrace.h, where
// they are described in full. One thread at a time may use it, except updates_for(). Calls with
// wrong arguments or in the wrong order throw SessionError and change nothing.
class ParameterSession {
 public:
  ParameterSession(SessionOptions options, std::unique_ptr<Log> log);

  std::int32_t add_group(std::string_view rule, std::span<const NamedValue> values,
                         double weight_decay);
  std::int32_t add_tensor(SessionTensor tensor);
  // Throws what StateHome throws.
  void prepare();

  // `place` tells where the gradient is.
  void add_gradient(std::int32_t tensor, const TensorView& gradient, const GpuPlace& place = {});
  // Returns true if the session reads the gradient where it is, until its step has ended. Otherwise
  // the gradient was added as by add_gradient().
  bool borrow_gradient(std::int32_t tensor, const TensorView& gradient, const GpuPlace& place = {});
  void discard_gradients();
  // Declares that nothing more is added to the tensor's gradient in the step under way, whose
  // gradients arrive.
  void complete_gradient(std::int32_t tensor);
  // Returns the sum of squares of the added gradient; 0 where nothing was added.
  double square_sum_of(std::int32_t tensor);
  void begin_step(const SessionStepOptions& options);
  // Returns the update thread, for callers that wait for a part of a step. The tensor is one of the
  // session's. Any thread may call it, also beside other calls.
  UpdateThread& updates_for(std::int32_t tensor);
  // Throws what UpdateThread::end() throws.
  SessionStepResult end_step();

  std::int64_t steps() const;
  void adopt_parameter(std::int32_t tensor);
  void read_state(std::int32_t tensor, std::string_view field, std::int64_t begin,
                  std::span<float> out);
  void write_state(std::int32_t tensor, std::string_view field, std::int64_t begin,
                   std::span<const float> values);
  std::int64_t updates_of(std::int32_t tensor) const;
  void set_updates_of(std::int32_t tensor, std::int64_t updates);
  // Returns the sum of the gradients that were added since the last step; empty where none was.
  std::span<float> gradient_of(std::int32_t tensor);
  // Lends that sum, also beyond the session's end; null where nothing was added. While a loan is
  // out, pause() is refused.
  std::unique_ptr<MemoryLoan> lend_gradient(std::int32_t tensor);
  void save(const std::string& directory);
  void load(const std::string& directory);

  // Give all memory back, and take it again with the same content; `directory` may be empty. They
  // throw what the calls of StateHome throw, and nothing has changed then.
  void pause(const std::string& directory);
  void resume();

  // Return JSON, as terrace.h says.
  std::string describe_ledger() const;
  std::string describe_metrics() const;

 private:
  enum class Phase : std::uint8_t { kOpen, kReady, kStepping, kPaused, kFailed };

  void expect_open(const char* call) const;
  void expect_ready(const char* call) const;
  // Refuses a call while the session is paused.
  void expect_awake(const char* call) const;
  void forget_gradients();
  // Copies the gradient that is borrowed in place of the tensor's sum into the sum.
  void take_in_borrowed(std::int32_t tensor);
  void check_gradient(std::int32_t tensor, const TensorView& gradient, const GpuPlace& place);
  void fill_masters(std::span<const std::size_t> chunks, StateAccess access);
  // Calls body(chunk, values) with the chunks' values of a field that lie in a range of elements.
  void visit_state(std::int32_t tensor, std::string_view field, const FieldRange& range,
                   StateAccess access,
                   FunctionRef<void(const StateChunk& chunk, std::span<float> values)> body);
  SessionStep make_step(const SessionStepOptions& options) const;
  void check_missing(const SessionStep& step, bool skips_missing) const;
  void complete_all();
  void check_scalars(const SessionStepOptions& options) const;

  const SessionOptions options_;
  const std::unique_ptr<Log> log_;
  GpuMemory gpus_;
  ParameterTable table_;
  Phase phase_ = Phase::kOpen;
  bool has_failed_to_prepare_ = false;
  std::atomic<bool> is_paused_ = false;  // for updates_for(), beside other calls
  SessionProgress progress_;
  std::vector<std::int64_t> additions_;  // of each tensor's gradient since the last step
  SessionStepResult last_step_;
  std::vector<bool> stepping_;     // tensors that the step under way updates
  bool gradients_arrive_ = false;  // in the step under way
  double update_seconds_ = 0;
  std::optional<WorkerArena> workers_;
  LoanCount loans_;
  std::unique_ptr<StateHome> home_;
  std::unique_ptr<ParameterMemory> memory_;
  std::unique_ptr<ParameterMarks> marks_;
  std::atomic<UpdateThread*> waited_for_ = nullptr;  // updates_, once the table is complete
  std::unique_ptr<UpdateThread> updates_;            // last: it uses all of the above
};

}  // namespace terrace
