#pragma once

#include "memory/tensor.h"
#include "parallel/mesh.h"
#include "runtime/machine/machine.h"
#include "runtime/step/machine_profile.h"

// The rates at which one rank of a run computes and moves bytes on a machine, for the simulator.
namespace terrace {

// The share of their peak that products reach where no figure says it.
inline constexpr double kUsualProductShare = 0.75;

// The gap between two ops of a device, in seconds. No measurement says it: it is an assumption, as
// long as a kernel takes to start. The start of each kernel is counted with the kernel.
inline constexpr double kDeviceOverheadS = 5e-6;

struct RankSetting {
  DType compute_type = DType::kBF16;
  MeshShape mesh;
  std::int32_t ranks_on_node = 1;  // that share its processors, memory, drives and network
};

// Returns the rates for a rank. Ranks are numbered as parallel/mesh.h says, and consecutive ranks
// share a node. A figure that is not known leaves a rate of 1 byte a second or less; check_known()
// refuses programs that need it. Throws ConfigError if the rate of products is not known.
MachineProfile rank_profile(const Machine& machine, const RankSetting& setting);

// Throws ConfigError naming a figure that is not known and that a rank's program needs: the rate of
// a link or a drive that it moves bytes over, or of its updates.
void check_known(const Machine& machine, const RankSetting& setting, const Program& program);

// Returns the peak rate of products in this type, of a rank. Throws ConfigError if it is not known.
double peak_flops_per_s(const Machine& machine, const RankSetting& setting);

}  // namespace terrace
