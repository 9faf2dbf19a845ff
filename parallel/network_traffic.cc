#include "parallel/network_traffic.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

namespace terrace {
namespace {

namespace fs = std::filesystem;

// A line is "  eth0: " and 16 numbers; the ninth is the bytes sent (proc_net_dev in proc(5)).
void read_interfaces(const std::string& root, NetworkTraffic& traffic) {
  std::ifstream lines(root + "/proc/net/dev");
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::size_t first = line.find_first_not_of(' ');
    std::istringstream numbers(line.substr(colon + 1));
    std::uint64_t sent = 0;
    for (int column = 0; column < 9; ++column) numbers >> sent;
    if (!numbers) continue;
    traffic[fmt::format("sockets over {}", line.substr(first, colon - first))] = sent;
  }
}

// Ports count in units of four bytes (the InfiniBand specification, PortXmitData).
void read_rdma_ports(const std::string& root, NetworkTraffic& traffic) {
  constexpr std::uint64_t kUnit = 4;
  std::error_code ignored;
  for (const auto& device : fs::directory_iterator(root + "/sys/class/infiniband", ignored)) {
    for (const auto& port : fs::directory_iterator(device.path() / "ports", ignored)) {
      std::ifstream counter(port.path() / "counters" / "port_xmit_data");
      std::uint64_t units = 0;
      if (!(counter >> units)) continue;
      traffic[fmt::format("RDMA over {} port {}", device.path().filename().string(),
                          port.path().filename().string())] = kUnit * units;
    }
  }
}

}  // namespace

NetworkTraffic read_network_traffic(const std::string& root) {
  NetworkTraffic traffic;
  read_interfaces(root, traffic);
  read_rdma_ports(root, traffic);
  return traffic;
}

std::string network_that_carried(const NetworkTraffic& before, const NetworkTraffic& after,
                                 std::uint64_t bytes) {
  std::string network;
  std::uint64_t most = bytes / 2;
  for (const auto& [name, sent] : after) {
    const auto earlier = before.find(name);
    if (earlier == before.end() || sent < earlier->second) continue;
    if (sent - earlier->second < most) continue;
    most = sent - earlier->second;
    network = name;
  }
  return network;
}

}  // namespace terrace
