#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace terrace {

// The bytes that this host has sent so far over each network interface and RDMA port, as the
// system counts them. Keys are in words: "sockets over eth0", "RDMA over mlx5_0 port 1".
using NetworkTraffic = std::map<std::string, std::uint64_t>;

// Reads the counters: /proc/net/dev, and port_xmit_data of the ports in /sys/class/infiniband.
// Where a file is missing, its counters are. `root` has these directories, which tests make.
NetworkTraffic read_network_traffic(const std::string& root = "");

// Returns the way over which at least half of `bytes` were sent between two readings, and most of
// all ways. Returns an empty text where no counter has risen that much: then they went another way.
std::string network_that_carried(const NetworkTraffic& before, const NetworkTraffic& after,
                                 std::uint64_t bytes);

}  // namespace terrace
