#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace terrace {

// The bytes that this host has sent so far over each network interface and RDMA port, as the
// system counts them. Keys are in words: "sockets over eth0", "RDMA over mlx5_0 port 1".
using NetworkTraffic = std::map<std::string, std::uint64_t>;

// Reads the counters: /proc/net/dev, and port_xmit_data of the ports in /sys/class/infiniband. If a
// file is missing, its counters are missing too. Tests give a `root` with files of their own.
NetworkTraffic read_network_traffic(const std::string& root = "");

// Returns the interface or port that sent most between two readings, if it sent at least half of
// `bytes`. Otherwise returns an empty text: the system does not count the traffic of this network.
std::string network_that_carried(const NetworkTraffic& before, const NetworkTraffic& after,
                                 std::uint64_t bytes);

}  // namespace terrace
