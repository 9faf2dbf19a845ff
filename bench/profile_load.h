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

// Measures what a MachineProfile says, each thing alone.
namespace terrace {

// The ops of a step, one after the other and nothing beside them: the whole step in memory, with
// two micro-batches and every second block recomputed, so that every class of ops is there but
// those that need a device.
class OpsAlone {
 public:
  // Model, batch, precision, optimizer and threads are those of `engine`.
  explicit OpsAlone(ModelRuntimeOptions engine);
  ~OpsAlone();

  // Runs them once and sets what a class of ops takes, and what starting one does.
  void measure(MachineProfile& profile);
  // What compute loses for each core that updates take (the profile's `update_displacement`), where
  // together they want more than there are: the compute of a step once more, with updates of the
  // embedding beside it, in memory of their own as large as the step's. `pauses`: between them, as
  // where updates wait for a drive.
  double update_displacement(const MachineProfile& profile, bool pauses);
  // Likewise, that transfers take (`transfer_displacement`): with reads and writes of `load`, whose
  // rates are the profile's drive.
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

// Copies between memory and the CPU device's, as its streams make them, and gradients that come
// from there and are added on the host.
class CopiesAlone {
 public:
  CopiesAlone(std::size_t size_bytes, int threads);
  // Sets the rates of copies, what sums take, and what the memory gives to all threads together.
  void measure(MachineProfile& profile);

 private:
  double seconds_per_byte_added();

  std::unique_ptr<Device> device_;
  std::unique_ptr<DeviceMemory> on_device_;
  std::unique_ptr<Stream> stream_;
  HostMemory host_;
  WorkerArena workers_;
};

// The rates of the drive and the cores that it keeps busy; three measurements of `seconds`.
DriveRates measure_drive(StoreLoad& load, double seconds);

// What the checksum of a byte in a core's cache costs one thread.
double checksum_seconds_per_byte(double seconds);

}  // namespace terrace
