#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "memory/device.h"
#include "offload/block_store.h"
#include "optim/update_rule.h"
#include "runtime/step/home_gate.h"
#include "runtime/step/program.h"

// Runs a program on real lanes: compute, upload and download on streams of the device, as are
// collectives over memory that the host cannot reach; reads and writes on the block store, updates
// on a thread of their own. One host thread per lane issues its ops in order; it waits on the host
// for host ops, and lets streams wait for streams.
namespace terrace {

// What a step is asked about.
struct StepResult {
  double loss = 0;           // nats per counted token, over the whole batch
  double gradient_norm = 0;  // before clipping; infinite in a step that was skipped
  double loss_scale = 1;     // that the step had
  bool was_skipped = false;  // gradients overflowed: its updates leave all as it is
};

// What a run is given from outside. Stays valid until the run is retired.
struct RunInput {
  std::int64_t step = 0;              // counted from 1; of a drain: the step that is finished
  std::span<const std::byte> tokens;  // the content of the program's tokens buffer
  std::int64_t target_tokens = 1;     // tokens whose loss counts, in all micro-batches and ranks
  StepScalars scalars;                // learning rate and bias corrections of this step
  StepResult* result = nullptr;       // where loss and norm go; may be null for a drain
};

// What the executor does not know how to do: kernels, updates, norms.
class OpBodies {
 public:
  virtual ~OpBodies() = default;
  // Called on the op's lane, one op of a lane at a time; `stream` is the op's, if it is on one.
  // What it throws fails the run.
  virtual void run(const Op& op, const RunInput& input, NativeStream stream) = 0;
  // Whether the store leaves the checksums of a read or a write to the body of the op that works on
  // its bytes: IoRequest::Checksums. Asked once for each op.
  virtual bool takes_checksums(const Op& /*transfer*/) const { return false; }
  // The first that failed, of bodies, transfers and streams; called once, by any thread, while ops
  // that have begun go on. In the run that failed and the one after it no further op does any work.
  // True: but for those between ranks, since every rank fails so, in the same op of the same run,
  // and waits for the others in ops that it had begun.
  virtual bool failed(const std::exception_ptr& /*error*/) noexcept { return false; }
};

struct ExecutorMemory {
  std::span<std::byte> device;  // the device arena; empty in unified mode
  std::span<std::byte> host;
  std::vector<ExtentId> extents;  // by extent number
  // False: a GPU's, which only its own streams reach. Then collectives over it are stream work too.
  bool host_reaches_device = true;
};

struct OpTime {
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
};

// What ops have moved, lane by lane.
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

// What a run came to, lane by lane.
struct RunTotals {
  std::int64_t step = 0;
  Part part = Part::kBody;
  std::int64_t first_compute_ns = 0;
  std::array<double, kLaneCount> busy_s{};  // reads and writes: while at least one is in flight
  MovedBytes moved;
  MovedBytes moved_by_deferred;  // of it, by ops that belong to the step before the run's; a
                                 // drain's have its number
  std::uint64_t process_peak_bytes = 0;  // resident; set by who runs the steps
};

struct RunReport : RunTotals {
  std::vector<OpTime> times;  // per op; zero where the op had no part
};

// What the lanes work with.
struct LaneServices {
  Device& device;
  BlockStore* store;  // may be null if the program has no NVMe buffers
  OpBodies& bodies;
  const Clock& clock;
  HomeGate* gate = nullptr;  // null: nobody reads homes beside the steps
};

class LaneExecutor {
 public:
  // Borrows everything but the memory's list of extents.
  LaneExecutor(const Program& program, ExecutorMemory memory, const LaneServices& services);
  ~LaneExecutor();
  LaneExecutor(const LaneExecutor&) = delete;
  LaneExecutor& operator=(const LaneExecutor&) = delete;

  // Starts a run. At most two are in flight: retire one before the third.
  void start(Part part, const RunInput& input);
  // Waits for the oldest run in flight. Rethrows the first failure of any op, unless all that
  // failed are of later runs; ops after a failure do no work, and the executor can only be
  // destroyed then. The report is good until the next call.
  const RunReport& retire();
  // Rethrows the first failure of any op so far, of whatever run.
  void rethrow_failure() const;
  int runs_in_flight() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// The memory of an access.
std::span<std::byte> bytes_of(const Program& program, const ExecutorMemory& memory,
                              const Access& access);

}  // namespace terrace
