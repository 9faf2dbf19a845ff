#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/half.h"
#include "base/log.h"
#include "runtime/engine/tier_runtime.h"
#include "runtime/session/memory_loan.h"
#include "runtime/session/parameter_table.h"
#include "runtime/session/parked_state.h"
#include "runtime/session/unit_gate.h"

namespace terrace {

struct UnitSessionOptions {
  std::optional<int> threads = {};                    // for updates; unset: as many as may be used
  std::optional<std::size_t> host_memory_bytes = {};  // unset: nine tenths of the free memory
  ByStateClass<std::optional<Tier>> homes = {};       // unset: the fastest that has room
  NvmeStoreOptions nvme = {};
  DType compute_type = DType::kF32;  // of parameters as the trainer sees them: fp32 or bf16
  std::int32_t micro_batches = 1;
  std::string rule;
  std::vector<NamedValue> hyperparameters = {};
  double weight_decay = 0;
  double max_grad_norm = 0;
  bool can_abandon = false;  // whether a step may be abandoned: its updates then wait for its norm
};

// A unit, whose parameters are one flat sequence.
struct SessionUnit {
  std::string name;
  std::int64_t elements = 0;
  std::int64_t decayed_elements = 0;  // at its start
  bool is_frozen = false;
  std::size_t saved_bytes = 0;  // from a micro-batch's forward to its backward
};

// The memory of a unit that the trainer works with until it releases the unit.
struct AcquiredUnit {
  const std::byte* parameters = nullptr;
  float* gradient = nullptr;  // null in a forward, and for a frozen unit
  std::byte* saved = nullptr;
  bool adds_gradient = false;  // the new gradient is added to the old; else stored
};

// Trains units whose parameters, gradients and optimizer state Terrace moves, by a step that was
// recorded and compiled; the caller computes them, on its own thread, between acquire() and
// release(). It offers the calls of runtime/capi/terrace.h, where they are described in full. One
// thread at a time. Throws SessionError for a call with wrong arguments or in the wrong order, and
// nothing has changed then.
class UnitSession {
 public:
  using StateSource = ElementSource;

  UnitSession(UnitSessionOptions options, std::unique_ptr<Log> log);
  ~UnitSession();
  UnitSession(const UnitSession&) = delete;
  UnitSession& operator=(const UnitSession&) = delete;

  std::int32_t add_unit(SessionUnit unit);
  // Adds the next task of every step. If none is recorded, each micro-batch goes forward through
  // all units, then back.
  void record(const StepTask& task);
  void prepare();
  // Sets parameters and state, and the number of steps that were made. Elements beyond the unit's
  // own are zero, and the source is not asked for them.
  void fill(std::int64_t steps, StateSource source);

  void begin_step(double learning_rate);
  AcquiredUnit acquire(const StepTask& task);
  // Throws SessionError, too, while a loan of the unit is out.
  void release(std::int32_t unit);
  // Lends the parameters, for reading, or the gradient of the unit that is acquired, also beyond
  // the session's end. Returns null if the task has no gradient.
  std::unique_ptr<MemoryLoan> lend(std::int32_t unit, Role part);
  // Gives up the step that is under way: it will update nothing, and its end_step() gives the
  // gradients to the sink.
  void abandon_step(GradientSink sink);
  // Ends the step. Throws NotFinite where a gradient is not finite; with can_abandon nothing has
  // changed then.
  StepResult end_step();

  std::int64_t steps() const { return steps_; }
  const SessionUnit& unit(std::int32_t number) const;
  std::string_view name_of(StateField field) const;
  DType compute_type() const { return options_.compute_type; }
  void read_state(std::int32_t unit, std::string_view field, std::int64_t begin,
                  std::span<float> out);
  // Reads parameters in bf16, as a step computes with them.
  void read_parameters(std::int32_t unit, std::int64_t begin, std::span<Bf16> out);
  std::string describe_ledger() const;

  // Give all memory back, and take it again with the same content; `directory` may be empty.
  // terrace.h says which errors they throw, and what has changed then.
  void pause(const std::string& directory);
  void resume();

 private:
  enum class Phase : std::uint8_t { kOpen, kPrepared, kReady, kStepping, kPaused, kFailed };

  void expect(Phase phase, const char* call) const;
  void expect_acquired(std::int32_t unit, const char* call) const;
  TierRuntimeOptions runtime_options() const;
  ComputeModel describe_units() const;
  std::string text_of(const StepTask& task) const;
  std::optional<StateField> field_named(std::string_view name) const;

  const UnitSessionOptions options_;
  const std::unique_ptr<Log> log_;
  ParameterTable rules_;  // its one group has the rule and its numbers
  Phase phase_ = Phase::kOpen;
  std::vector<SessionUnit> units_;
  std::vector<StepTask> tasks_;  // of a step, in order
  std::size_t next_ = 0;         // the task to be acquired next
  bool is_acquired_ = false;     // the task before it is not released
  AcquiredUnit acquired_;        // its memory
  LoanCount loans_;              // of that memory
  bool is_abandoned_ = false;    // the step that is under way
  std::int64_t steps_ = 0;
  TierRuntimeOptions runtime_options_;
  std::optional<TierPlan> plan_;
  UnitGate gate_;
  std::unique_ptr<ParkedState> parked_;   // from pause() to resume()
  std::unique_ptr<TierRuntime> runtime_;  // last: it uses all of the above
};

}  // namespace terrace
