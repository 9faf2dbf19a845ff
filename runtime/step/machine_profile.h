#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>

#include "runtime/model/parameter_layout.h"
#include "runtime/step/program.h"

// How fast a machine is, for the simulator. The default is a small computer without an accelerator:
// what it predicts is rather too slow than too fast. Measured values replace it.
namespace terrace {

// Ops that take equally long for equal work, in programs of one model, batch and precision.
struct OpClass {
  OpKind kind = OpKind::kForward;
  UnitKind unit = UnitKind::kBlock;  // of ops of the compute lane
  std::string_view phase = "";       // of ops that are one of several of a unit
  bool adds = false;                 // to a gradient, which a first micro-batch assigns

  friend auto operator<=>(const OpClass&, const OpClass&) = default;
};

OpClass class_of(const Program& program, const Op& op);
// What the time of a class's ops grows with: on the update lane bytes, of the embedding's backward
// the micro-batches, else nothing (1).
double work_of(const Program& program, const Op& op);

// A drive with nothing else going on.
struct DriveRates {
  double read_bytes_per_s = 1.5e9;   // all reads in flight together
  double write_bytes_per_s = 1.0e9;  // all writes in flight together
  double disk_bytes_per_s = 1.5e9;   // reads and writes together, as many bytes of both
  double read_cores = 0;  // kept busy by the reads in flight together, for checksums and submission
  double write_cores = 0;
};

struct MachineProfile {
  // The compute lane. Its ops have flops, or bytes where they only move through memory.
  double flops_per_s = 50e9;
  double compute_bytes_per_s = 8e9;
  double op_overhead_s = 20e-6;  // before the work of every op of this lane

  // The other lanes, each with nothing else going on.
  double upload_bytes_per_s = 6e9;
  double download_bytes_per_s = 6e9;
  DriveRates drive;
  // Of transfers whose checksums an update takes (runtime/engine/update_checksums.h), not the
  // store; none: those are as the others.
  std::optional<DriveRates> unchecked_drive;
  double network_bytes_per_s = 1e9;  // collectives, sends and receives
  double update_bytes_per_s = 4e9;   // optimizer, sums and norms on the host

  // Added to an update for every byte that it takes a checksum of.
  double checksum_s_per_byte = 0;

  // Of ops of the compute and update lanes that were measured: takes the place of their rates.
  std::map<OpClass, double> seconds_per_work;

  // What lanes share.
  double memory_bytes_per_s = 20e9;  // of the host: copies, reads, writes, updates
  double cores = 4;                  // of the host
  // Where cores are short, what the compute lane loses for each core that transfers of the drive
  // keep busy, or updates. Its ops end with the slowest of their threads: where one gives way, all
  // wait. At least 1, where no more is lost than was taken.
  double transfer_displacement = 1;
  double update_displacement = 1;
  // Kept busy by a lane that goes at full speed.
  double compute_cores = 4;  // 0 with an accelerator
  double update_cores = 2;
  double copy_cores = 0;  // by uploads, and by downloads: 1 where a processor copies

  int io_depth = 8;  // reads that share the drive, and writes
};

// Throws ConfigError naming the field if a rate is not positive and finite, a displacement is below
// 1 or not finite, an overhead, a measured time or a number of cores is negative, or no transfer
// may be in flight.
void check_profile(const MachineProfile& profile);

}  // namespace terrace
