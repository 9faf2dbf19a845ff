#pragma once

// How fast a machine is, for the simulator. The default is a small computer without an accelerator:
// what it predicts is rather too slow than too fast. Measured values replace it.
namespace terrace {

struct MachineProfile {
  // The compute lane. Its ops have flops, or bytes where they only move through memory.
  double flops_per_s = 50e9;
  double compute_bytes_per_s = 8e9;
  double op_overhead_s = 20e-6;  // before the work of every op of this lane

  // The other lanes, each with nothing else going on.
  double upload_bytes_per_s = 6e9;
  double download_bytes_per_s = 6e9;
  double read_bytes_per_s = 1.5e9;   // all reads in flight together
  double write_bytes_per_s = 1.0e9;  // all writes in flight together
  double network_bytes_per_s = 1e9;  // collectives, sends and receives
  double update_bytes_per_s = 4e9;   // optimizer, sums and norms on the host

  // What lanes share.
  double disk_bytes_per_s = 1.5e9;   // reads and writes together
  double memory_bytes_per_s = 20e9;  // of the host: copies, reads, writes, updates
  double cores = 4;                  // of the host
  double compute_cores = 4;          // kept busy by the compute lane; 0 with an accelerator
  double update_cores = 2;           // kept busy by the update lane

  int io_depth = 8;  // reads in flight, and writes in flight
};

// Throws ConfigError naming the field if a rate is not positive and finite, an overhead or a number
// of cores is negative, or no transfer may be in flight.
void check_profile(const MachineProfile& profile);

}  // namespace terrace
