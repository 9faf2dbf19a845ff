#include "tests/sim/sim_machine.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "offload/striped_store.h"
#include "tests/sim/virtual_device.h"

namespace terrace {
namespace {

constexpr std::size_t kBlockBytes = 16 * kKiB;  // small, so that requests have several

std::size_t arena_bytes(const Program& program, Tier tier) {
  return std::max<std::size_t>(program.use_of(tier).packed_bytes, 4096);
}

}  // namespace

SimMachine::SimMachine(const SimShape& shape, const Program& program, VirtualTime& time,
                       const SimMachineOptions& options)
    : shape_(shape),
      program_(program),
      device_(make_virtual_device(time, options.command_ns)),
      host_(arena_bytes(program, Tier::kHost), 4096) {
  for (std::size_t i = 0; i < options.drives; ++i) {
    VirtualDriveOptions drive = options.drive;
    drive.faults.seed += i;
    drives_.push_back(std::make_unique<VirtualDrive>(time, drive));
  }
  const StripedStore::Options store_options{.block_bytes = kBlockBytes,
                                            .checksums = options.bug != PlantedBug::kUncheckedSum,
                                            .stall_seconds = 0};
  store_ = plant_in_store(
      options.bug, options.bug_dice,
      std::make_unique<StripedStore>(store_options, make_virtual_stripes(drives_), log_));
  make_memory(time.draw());
  homes_ = std::make_unique<HomeAccess>(program, shape.model(), memory_, *device_, store_.get());
  units_ = std::make_unique<UnitState>(*homes_, shape.model(), shape.options().optimizer);
  state_ = std::make_unique<TrainingState>(*units_, shape.layout());
  bodies_ = std::make_unique<StepBodies>(
      program, memory_, store_.get(),
      StepComputation{shape.model(), shape.compute(), shape.options().optimizer, cpu_lane_kernels(),
                      shape.workers(), shape.workers()});
  const SimExecutor::Parts parts{time, *device_, *store_, drives_, options.drive_depth, *bodies_};
  executor_ = std::make_unique<SimExecutor>(program, memory_, parts, options.issue_ns);
}

// Ends the transfers in flight while the objects that wait for them are still there.
SimMachine::~SimMachine() {
  for (const auto& drive : drives_) drive->finish();
}

void SimMachine::hurry(bool hurried) {
  for (const auto& drive : drives_) drive->hurry(hurried);
}

void SimMachine::make_memory(std::uint64_t garbage) {
  host_.fill(garbage);
  memory_.host = host_.span();
  const std::size_t device_bytes = arena_bytes(program_, Tier::kDevice);
  device_memory_ = device_->allocate(device_bytes);
  memory_.device = device_memory_->bytes();
  std::ranges::fill(memory_.device, static_cast<std::byte>(garbage));
  for (const std::size_t size : extent_sizes(program_)) {
    memory_.extents.push_back(store_->create_extent(size));
  }
  if (memory_.extents.empty()) store_->create_extent(1);
  store_->prepare();
  fill_constants();
}

void SimMachine::fill_constants() {
  const std::vector<float> table = shape_.compute().constants();
  if (table.empty()) return;
  for (BufferId b = 0; b < static_cast<BufferId>(program_.buffers.size()); ++b) {
    if (program_.buffers[b].name != "rope table") continue;
    const std::span<std::byte> bytes =
        bytes_of(program_, memory_, {Role::kConstants, b, 0, program_.buffers[b].size_bytes});
    std::memcpy(bytes.data(), table.data(), table.size() * sizeof(float));
  }
}

void SimMachine::fill_state(const StateSource& source) {
  hurry(true);
  state_->fill_from(source, shape_.workers());
  hurry(false);
}

std::uint64_t SimMachine::state_hash() {
  hurry(true);
  const std::uint64_t hash = hash_of_state(*state_, shape_.layout());
  hurry(false);
  return hash;
}

void SimMachine::begin_step(std::int64_t step) {
  RunInput input = shape_.input_of(step);
  input.tokens = std::as_bytes(std::span(shape_.tokens_of(step)));
  input.result = &results_.at(static_cast<std::size_t>(begun_ % 2));
  executor_->start(updates_pending_ ? Part::kBody : Part::kPrologue, input);
  ++begun_;
  last_step_ = step;
  updates_pending_ = true;
}

StepResult SimMachine::finish_step() {
  executor_->retire();
  return results_.at(static_cast<std::size_t>(finished_++ % 2));
}

void SimMachine::drain() {
  RunInput input;
  input.step = last_step_;
  executor_->start(Part::kDrain, input);
  updates_pending_ = false;
  executor_->retire();
}

}  // namespace terrace
