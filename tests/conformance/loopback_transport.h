#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "parallel/mpi/transport.h"

namespace terrace {

// Makes transports between threads of this process, one per rank. Windows are plain memory, and a
// message is copied by the side that comes second, so the sanitizers see what processes do to each
// other. Every `ranks_per_host` ranks are a host. Where all ranks are on one host, `reads` says
// whether they read each other's buffers. kAfterFailure: a read aborts, and ends when another
// rank's call has failed because of that; buffers must outlive the run.
enum class PeerReads : std::uint8_t { kNone, kWork, kFail, kAfterFailure };

// The bytes of pieces that the first hosts have sent to other hosts.
struct LoopbackTraffic {
  std::array<std::atomic<std::uint64_t>, 4> sent_by{};
};

// `traffic` may be null; otherwise it outlives the transports.
std::vector<std::unique_ptr<Transport>> make_loopback_transports(
    int ranks, int ranks_per_host, PeerReads reads = PeerReads::kNone,
    LoopbackTraffic* traffic = nullptr);
// Does the same with ranks on any hosts: `hosts` has the host of each rank.
std::vector<std::unique_ptr<Transport>> make_loopback_transports(
    const std::vector<int>& hosts, PeerReads reads = PeerReads::kNone,
    LoopbackTraffic* traffic = nullptr);

}  // namespace terrace
