#pragma once

#include <vector>

#include "runtime/step/machine_profile.h"
#include "tests/runtime/step/hand_made_program.h"

namespace terrace {

// Returns a profile in which one flop or byte takes a second and nothing is scarce.
inline MachineProfile unit_profile() {
  MachineProfile profile;
  profile.flops_per_s = 1;
  profile.compute_bytes_per_s = 1;
  profile.op_overhead_s = 0;
  profile.upload_bytes_per_s = 1;
  profile.download_bytes_per_s = 1;
  profile.drive.read_bytes_per_s = 1;
  profile.drive.write_bytes_per_s = 1;
  profile.links.fill({.bytes_per_s = 1});
  profile.update_bytes_per_s = 1;
  profile.drive.disk_bytes_per_s = 2;
  profile.memory_bytes_per_s = 100;
  profile.cores = 8;
  profile.compute_cores = 4;
  profile.update_cores = 4;
  profile.io_depth = 1;
  return profile;
}

// Returns a program of two ops on these lanes, one after the other or independent.
inline Program two_ops(Lane first, double first_cost, Lane second, double second_cost, bool chain) {
  HandMadeProgram made;
  const BufferId a = made.own_buffer();
  const BufferId b = made.own_buffer();
  made.op(first, first_cost, {}, {a});
  made.op(second, second_cost, chain ? std::vector<BufferId>{a} : std::vector<BufferId>{}, {b});
  return made.finish();
}

}  // namespace terrace
