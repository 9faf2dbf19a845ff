#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>

#include "runtime/step/program.h"

// The speed of a machine, for the simulator. The default is a small computer without an
// accelerator. Its predictions are rather too slow than too fast. Measured values replace it.
namespace terrace {

// A class of ops that take equally long for equal work, in programs of one model, batch and
// precision.
struct OpClass {
  OpKind kind = OpKind::kForward;
  std::int32_t like_unit = -1;  // for ops of the compute lane: Program::like_units
  std::string_view phase = "";  // for ops that are one of several of a unit
  bool adds = false;            // to a gradient; the first micro-batch assigns it

  friend auto operator<=>(const OpClass&, const OpClass&) = default;
};

OpClass class_of(const Program& program, const Op& op);
// Returns the amount of work that the time of an op grows with. For updates, sums and norms, and
// for everything on the update lane, it is the op's bytes; for the embedding's backward it is the
// number of micro-batches. Otherwise it is 1, because all ops of such a class take equally long.
double work_of(const Program& program, const Op& op);

// The speed of a drive with nothing else going on.
struct DriveRates {
  double read_bytes_per_s = 1.5e9;   // all reads in flight together
  double write_bytes_per_s = 1.0e9;  // all writes in flight together
  double disk_bytes_per_s = 1.5e9;   // reads and writes together, equally many bytes of both
  // Cores that all reads, or all writes, in flight together keep busy, for checksums and
  // submission.
  double read_cores = 0;
  double write_cores = 0;
};

// The rate of a link between ranks, with nothing else going on.
struct LinkRate {
  double bytes_per_s = 1e9;
  double latency_s = 0;  // added to every collective or message
  double cores = 0;      // that a collective or message keeps busy
};

struct MachineProfile {
  // The compute lane. Its ops have flops, or bytes if they only move through memory.
  double flops_per_s = 50e9;
  double compute_bytes_per_s = 8e9;
  double op_overhead_s = 20e-6;  // before the work of every op of this lane

  // The other lanes, each with nothing else going on.
  double upload_bytes_per_s = 6e9;
  double download_bytes_per_s = 6e9;
  DriveRates drive;
  // The drive's rates for transfers whose checksums an update takes instead of the store
  // (runtime/engine/update_checksums.h). None: these transfers are as the others.
  std::optional<DriveRates> unchecked_drive;
  std::array<LinkRate, kMeshAxes> links = {};  // collectives and messages, by the axis of a lane
  bool ranks_meet_in_host_memory = true;       // false: devices exchange their own memory
  double update_bytes_per_s = 4e9;             // optimizer, sums and norms on the host

  // Added to an update's time for every byte whose checksum it takes.
  double checksum_s_per_byte = 0;

  // The measured times of ops of the compute and update lanes. They take the place of the rates.
  std::map<OpClass, double> seconds_per_work;

  // The resources that lanes share.
  double memory_bytes_per_s = 20e9;  // of the host: copies, reads, writes, updates
  double cores = 4;                  // of the host
  // How much the compute lane loses, where cores are short, for each core that the drive's
  // transfers, or updates, keep busy. A compute op ends with the slowest of its threads: if one
  // thread gives way, all wait. At least 1. With 1, no more is lost than was taken.
  double transfer_displacement = 1;
  double update_displacement = 1;
  // Cores that a lane keeps busy at full speed.
  double compute_cores = 4;  // 0 with an accelerator
  double update_cores = 2;
  double copy_cores = 0;  // for uploads, and for downloads; 1 if a processor copies

  int io_depth = 8;  // the most reads, and the most writes, in flight at once
};

inline LinkRate& link_of(MachineProfile& profile, MeshAxis axis) {
  return profile.links.at(static_cast<std::size_t>(axis));
}
inline const LinkRate& link_of(const MachineProfile& profile, MeshAxis axis) {
  return profile.links.at(static_cast<std::size_t>(axis));
}

// Throws ConfigError naming the field if a rate is not positive and finite, a displacement is below
// 1 or not finite, an overhead, a measured time or a number of cores is negative, or no transfer
// may be in flight.
void check_profile(const MachineProfile& profile);

}  // namespace terrace
