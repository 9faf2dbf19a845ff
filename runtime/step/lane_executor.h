#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "memory/device.h"
#include "offload/block_store.h"
#include "optim/update_rule.h"
#include "runtime/step/home_gate.h"
#include "runtime/step/left_out_ops.h"
#include "runtime/step/noise_sums.h"
#include "runtime/step/program.h"
#include "runtime/step/router_figures.h"

// Runs a program on real lanes. Compute, uploads and downloads run on streams of the device, and so
// do collectives over memory that the host cannot reach. Reads and writes go to the block store,
// and updates run on a thread of their own. One host thread per lane issues the lane's ops in
// order. It waits on the host for ops that run on the host, and lets streams wait for streams.
namespace terrace {

// The results of a step.
struct StepResult {
  double loss = 0;           // nats per counted token, over the whole batch
  double gradient_norm = 0;  // before clipping; infinite in a step that was skipped
  double loss_scale = 1;     // the scale that the step used
  bool was_skipped = false;  // gradients overflowed: the step's updates change nothing
  std::optional<RouterFigures> router = {};  // of a model that has experts
  // None where the plan does not measure it, or where the step has nothing to measure.
  std::optional<SmallBatch> small_batch = {};
};

// The input of a run. It must stay valid until the run is retired.
struct RunInput {
  std::int64_t step = 0;              // counted from 1; for a drain: the step that it finishes
  std::span<const std::byte> tokens;  // the content of the program's tokens buffer
  std::int64_t target_tokens = 1;     // tokens whose loss counts, in all micro-batches and ranks
  // The part of these tokens that is in this rank's small batch (StepModel::measures_noise).
  std::int64_t small_batch_tokens = 0;
  std::int32_t micro_batches = kAllMicroBatches;  // the program's first ones; at least 1
  StepScalars scalars;                            // of this step, except UpdateRule::step_scalars()
  std::int64_t update_number = 1;  // which update of its parameters the step makes, from 1
  double learning_rate = 0;
  StepResult* result = nullptr;  // receives the loss and the norm; may be null for a drain
};

// The work of ops that the executor does not know how to do: kernels, updates, norms.
class OpBodies {
 public:
  virtual ~OpBodies() = default;
  // Runs the body of an op. Called on the op's lane, for one op of a lane at a time. `stream` is
  // the op's stream, if the op is on one. An exception that it throws fails the run.
  virtual void run(const Op& op, const RunInput& input, NativeStream stream) = 0;
  // Returns whether the store leaves the checksums of a read or a write to the body of the op that
  // works on its bytes: see IoRequest::Checksums. Asked once for each op.
  virtual bool takes_checksums(const Op& /*transfer*/) const { return false; }
  // Takes the first failure of a body, a transfer or a stream. Called once, by any thread, while
  // ops that have begun go on. In the run that failed and the one after it, no further op does any
  // work. Returns whether ops between ranks are an exception and go on. They do where every rank
  // fails in the same way, in the same op of the same run: each rank then waits for the others in
  // the ops between ranks that it had begun.
  virtual bool failed(const std::exception_ptr& /*error*/) noexcept { return false; }
};

struct ExecutorMemory {
  std::span<std::byte> device;  // the device arena; empty in unified mode
  std::span<std::byte> host;
  std::vector<ExtentId> extents;  // by extent number
  // False: the device memory is a GPU's, which only its own streams reach. Collectives over it are
  // then stream work too.
  bool host_reaches_device = true;
};

struct OpTime {
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
};

// The bytes that ops have moved, lane by lane.
struct MovedBytes {
  std::array<double, kLaneCount> lanes{};
  double parameter_uploads = 0;  // into the compute tier: by upload, or by read in unified mode
  double parameter_reads = 0;    // from NVMe

  MovedBytes& operator+=(const MovedBytes& other) { return add(other, 1); }
  MovedBytes& operator-=(const MovedBytes& other) { return add(other, -1); }

 private:
  MovedBytes& add(const MovedBytes& other, double times) {
    for (std::size_t l = 0; l < kLaneCount; ++l) lanes[l] += times * other.lanes[l];
    parameter_uploads += times * other.parameter_uploads;
    parameter_reads += times * other.parameter_reads;
    return *this;
  }
};

// The totals of a run, lane by lane.
struct RunTotals {
  std::int64_t step = 0;
  Part part = Part::kBody;
  std::int64_t first_compute_ns = 0;
  std::array<double, kLaneCount> busy_s{};  // for reads and writes: while at least one is in flight
  MovedBytes moved;
  // The part of `moved` by deferred ops. They belong to the step before `step`, or in a drain to
  // `step` itself.
  MovedBytes moved_by_deferred;
  // Set by the caller that runs the steps. NaN: not measured.
  std::uint64_t process_peak_bytes = 0;  // resident
  double host_joules = 0;                // of processors and their memory
  double device_joules = 0;              // of GPUs
};

struct RunReport : RunTotals {
  std::vector<OpTime> times;  // per op; zero if the op took no part
};

// The services that the lanes use.
struct LaneServices {
  Device& device;
  BlockStore* store;  // may be null if the program has no NVMe buffers
  OpBodies& bodies;
  const Clock& clock;
  HomeGate* gate = nullptr;  // null if nothing reads homes while steps run
};

class LaneExecutor {
 public:
  // Borrows everything except the memory's list of extents.
  LaneExecutor(const Program& program, ExecutorMemory memory, const LaneServices& services);
  ~LaneExecutor();
  LaneExecutor(const LaneExecutor&) = delete;
  LaneExecutor& operator=(const LaneExecutor&) = delete;

  // Starts a run. At most two runs are in flight: retire one before starting the third.
  void start(Part part, const RunInput& input);
  // Waits for the oldest run in flight and returns its report, which is valid until the next call.
  // Rethrows the first failure of any op, unless only later runs failed. After a failure, ops do no
  // work and the executor can only be destroyed.
  const RunReport& retire();
  // Rethrows the first failure of any op so far, in whichever run.
  void rethrow_failure() const;
  int runs_in_flight() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Returns the memory of an access, which is not to NVMe.
std::span<std::byte> bytes_of(const Program& program, const ExecutorMemory& memory,
                              const Access& access);

}  // namespace terrace
