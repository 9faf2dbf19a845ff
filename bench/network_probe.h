#pragma once

#include <string>

#include "bench/bench.h"
#include "bench/bench_record.h"
#include "parallel/communicator.h"

namespace terrace {

// Returns over which network data passes between the ranks of `world`, in words: the memory of the
// host, or the interface or RDMA port over which rank 0 has sent the data of a broadcast, by the
// system's counters. Only rank 0's text means something. All ranks call it.
std::string name_network(Communicator& world, int hosts);

inline constexpr const char* kMessageLatency = "mpi_message_8b";

// The messages whose time is measured.
struct MeasuredMessages {
  Communicator& ours;
  Communicator& library;
  const std::string& network;  // goes into the result as a note
  int rounds = 1;
};

// Measures the time of a message of 8 bytes between the first rank and the last, which are on two
// hosts if there are several: half of a round trip, beside the library's own. With a time limit it
// takes a tenth of the time that is left. All ranks call it; the first one's record gets the
// result. Throws TimeIsUp.
void measure_message_latency(const MeasuredMessages& messages, BenchRecord& record);

}  // namespace terrace
