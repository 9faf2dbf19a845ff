#pragma once

#include <memory>

#include "runtime/engine/home_access.h"
#include "runtime/engine/step_bodies.h"
#include "runtime/engine/training_state.h"
#include "tests/offload/store_fixture.h"
#include "tests/sim/planted_bug.h"
#include "tests/sim/sim_executor.h"
#include "tests/sim/sim_shape.h"
#include "tests/sim/virtual_drive.h"

namespace terrace {

struct SimMachineOptions {
  std::size_t drives = 1;  // blocks are striped over them
  VirtualDriveOptions drive;
  std::size_t drive_depth = 64;
  std::int64_t command_ns = 1000;  // of the device's streams
  std::int64_t issue_ns = 100;     // of the lanes' hosts
  PlantedBug bug = PlantedBug::kNone;
  std::uint64_t bug_dice = 0;
};

// The parts of an engine on virtual lanes: arenas, store, homes, bodies and executor of one
// program.
class SimMachine {
 public:
  // Borrows all. Memory starts as garbage.
  SimMachine(const SimShape& shape, const Program& program, VirtualTime& time,
             const SimMachineOptions& options);
  ~SimMachine();
  SimMachine(const SimMachine&) = delete;
  SimMachine& operator=(const SimMachine&) = delete;

  void fill_state(const StateSource& source);
  // Returns a hash of all state; between runs only.
  std::uint64_t state_hash();
  TrainingState& state() { return *state_; }
  // Makes the drives end everything at once, for waits outside of virtual time.
  void hurry(bool hurried);

  void begin_step(std::int64_t step);
  StepResult finish_step();
  // Runs the updates of the last step.
  void drain();

 private:
  void make_memory(std::uint64_t garbage);
  void fill_constants();

  const SimShape& shape_;
  const Program& program_;
  VirtualDrives drives_;
  std::unique_ptr<Device> device_;
  SilentLog log_;
  std::unique_ptr<BlockStore> store_;
  std::unique_ptr<DeviceMemory> device_memory_;
  AlignedMemory host_;
  ExecutorMemory memory_;
  std::unique_ptr<HomeAccess> homes_;
  std::unique_ptr<UnitState> units_;
  std::unique_ptr<TrainingState> state_;
  std::unique_ptr<StepBodies> bodies_;
  std::unique_ptr<SimExecutor> executor_;
  std::array<StepResult, 2> results_;
  std::int64_t begun_ = 0;
  std::int64_t finished_ = 0;
  std::int64_t last_step_ = 0;
  bool updates_pending_ = false;
};

}  // namespace terrace
