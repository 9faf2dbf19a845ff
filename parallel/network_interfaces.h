#pragma once

#include <string>
#include <vector>

namespace terrace {

// A network interface or an RDMA port that could carry data between ranks on different hosts.
struct NetworkInterface {
  std::string name;         // "eth0", "mlx5_0 port 1"
  double bits_per_s = 0;    // 0: the system does not say
  int mtu_bytes = 0;        // the most in one packet; 0: RDMA
  bool is_virtual = false;  // no hardware of its own: a bridge, a container's cable
  bool is_rdma = false;
};

// Returns the interfaces that are up, without the loopback interface, and the active RDMA ports,
// each sorted by name. Reads /sys/class/net and /sys/class/infiniband. Tests give a `root` with
// files of their own.
std::vector<NetworkInterface> read_network_interfaces(const std::string& root = "");

// Returns a text such as "eth0 (10 Gbit/s, MTU 1500)".
std::string describe(const NetworkInterface& interface);

}  // namespace terrace
