#include "parallel/network_interfaces.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace terrace {
namespace {

namespace fs = std::filesystem;

// The kinds of interfaces in /sys/class/net/*/type (linux/if_arp.h).
constexpr int kLoopback = 772;

template <typename T>
T read_value(const fs::path& file, const T& otherwise) {
  std::ifstream in(file);
  T value{};
  return in >> value ? value : otherwise;
}

// Returns an empty text where there is no such file.
std::string read_word(const fs::path& file) { return read_value(file, std::string()); }

void read_sockets(const std::string& root, std::vector<NetworkInterface>& all) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(root + "/sys/class/net", ignored)) {
    const fs::path& path = entry.path();
    // A state is "unknown" where the driver does not keep it.
    const std::string state = read_word(path / "operstate");
    if ((state != "up" && state != "unknown") || read_value(path / "type", 0) == kLoopback) {
      continue;
    }
    const auto megabits = read_value(path / "speed", -1.0);
    all.push_back({.name = path.filename().string(),
                   .bits_per_s = std::max(megabits, 0.0) * 1e6,
                   .mtu_bytes = read_value(path / "mtu", 0),
                   .is_virtual = !fs::exists(path / "device", ignored)});
  }
}

// A port's state is "4: ACTIVE", and its rate "100 Gb/sec (4X EDR)".
void read_rdma(const std::string& root, std::vector<NetworkInterface>& all) {
  std::error_code ignored;
  for (const auto& device : fs::directory_iterator(root + "/sys/class/infiniband", ignored)) {
    for (const auto& port : fs::directory_iterator(device.path() / "ports", ignored)) {
      if (read_word(port.path() / "state") != "4:") continue;
      all.push_back({.name = fmt::format("{} port {}", device.path().filename().string(),
                                         port.path().filename().string()),
                     .bits_per_s = read_value(port.path() / "rate", 0.0) * 1e9,
                     .is_rdma = true});
    }
  }
}

}  // namespace

std::vector<NetworkInterface> read_network_interfaces(const std::string& root) {
  std::vector<NetworkInterface> sockets;
  std::vector<NetworkInterface> rdma;
  read_sockets(root, sockets);
  read_rdma(root, rdma);
  std::ranges::sort(sockets, {}, &NetworkInterface::name);
  std::ranges::sort(rdma, {}, &NetworkInterface::name);
  sockets.insert(sockets.end(), rdma.begin(), rdma.end());
  return sockets;
}

std::string describe(const NetworkInterface& interface) {
  std::string text = interface.is_rdma ? "RDMA over " + interface.name : interface.name;
  text += interface.bits_per_s > 0 ? fmt::format(" ({:g} Gbit/s", interface.bits_per_s / 1e9)
                                   : " (speed unknown";
  if (interface.mtu_bytes > 0) text += fmt::format(", MTU {}", interface.mtu_bytes);
  return text + (interface.is_virtual ? ", virtual)" : ")");
}

}  // namespace terrace
