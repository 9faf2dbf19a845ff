#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "bench/idle_bodies.h"
#include "bench/samples.h"
#include "bench/store_load.h"
#include "runtime/engine/model_runtime.h"
#include "runtime/engine/step_bodies.h"
#include "runtime/step/machine_profile.h"

// Measures the figures of a MachineProfile, each alone.
namespace terrace {

// The ops of a step, run one after the other with nothing beside them. The whole step is in memory,
// with two micro-batches and every second block recomputed, so that it has every class of ops
// except those that need a device.
class OpsAlone {
 public:
  // Takes model, batch, precision, optimizer and threads from `engine`.
  explicit OpsAlone(ModelRuntimeOptions engine);
  ~OpsAlone();

  // Runs the ops once, and sets the time that a class of ops takes and the time that starting one
  // takes.
  void measure(MachineProfile& profile);
  // Returns the cores that compute loses for each core that updates take (the profile's
  // `update_displacement`), where together they want more cores than there are. Runs the compute of
  // a step once more, with updates of the embedding beside it, in memory of their own as large as
  // the step's. `pauses`: makes pauses between updates, as if they waited for a drive.
  double update_displacement(const MachineProfile& profile, bool pauses);
  // Returns the same for each core that transfers take (`transfer_displacement`). They are reads
  // and writes of `load`, whose rates are the profile's drive.
  double transfer_displacement(const MachineProfile& profile, StoreLoad& load);

 private:
  class UpdatesBeside;
  using Times = std::map<OpClass, Samples>;  // seconds per work

  void run_all(Part part, Times* times);
  double compute_seconds();
  double run(const Op& op);

  const ModelRuntimeOptions options_;
  const TierPlan plan_;
  const Program program_;
  const std::vector<UnitLayout> layout_;
  WorkerArena workers_;
  WorkerArena update_workers_;
  UnitCompute compute_;
  std::unique_ptr<Device> device_;
  HostMemory host_;
  ExecutorMemory memory_;
  StepBodies bodies_;
  IdleBodies idle_;
  SystemClock clock_;
  std::vector<std::int32_t> tokens_;
  RunInput input_;
  LaneExecutor idle_executor_;
  std::unique_ptr<UpdatesBeside> updates_beside_;  // made by the first update_displacement()
};

// Copies between host memory and the CPU device's memory, as its streams make them, and sums on the
// host of gradients that come from there.
class CopiesAlone {
 public:
  CopiesAlone(std::size_t size_bytes, int threads);
  // Sets the rates of copies, the time of sums, and the rate of memory for all threads together.
  void measure(MachineProfile& profile);

 private:
  double seconds_per_byte_added();

  std::unique_ptr<Device> device_;
  std::unique_ptr<DeviceMemory> on_device_;
  std::unique_ptr<Stream> stream_;
  HostMemory host_;
  WorkerArena workers_;
};

// Returns the rates of the drive and the cores that it keeps busy. Takes three measurements of
// `seconds`.
DriveRates measure_drive(StoreLoad& load, double seconds);

// Returns the seconds that the checksum of a byte in a core's cache takes one thread.
double checksum_seconds_per_byte(double seconds);

}  // namespace terrace
