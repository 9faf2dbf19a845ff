#include "parallel/network_interfaces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

class NetworkInterfacesTest : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_.path(path);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << '\n';
  }
  void add(const std::string& name, const std::string& state, const std::string& type,
           const std::string& speed) {
    const std::string at = "sys/class/net/" + name + "/";
    write(at + "operstate", state);
    write(at + "type", type);
    write(at + "mtu", "9000");
    if (!speed.empty()) write(at + "speed", speed);
  }
  std::vector<std::string> described() const {
    std::vector<std::string> texts;
    for (const NetworkInterface& one : read_network_interfaces(root_.path())) {
      texts.push_back(describe(one));
    }
    return texts;
  }

  TemporaryDirectory root_;
};

TEST_F(NetworkInterfacesTest, AreThoseThatCanCarryData) {
  add("lo", "unknown", "772", "");
  add("eth0", "up", "1", "25000");
  write("sys/class/net/eth0/device/vendor", "0x15b3");
  add("eth1", "down", "1", "1000");
  add("docker0", "up", "1", "-1");
  add("br0", "unknown", "1", "2500");
  const std::string ports = "sys/class/infiniband/mlx5_0/ports/";
  write(ports + "1/state", "4: ACTIVE");
  write(ports + "1/rate", "100 Gb/sec (4X EDR)");
  write(ports + "2/state", "1: DOWN");
  EXPECT_THAT(described(), testing::ElementsAre("br0 (2.5 Gbit/s, MTU 9000, virtual)",
                                                "docker0 (speed unknown, MTU 9000, virtual)",
                                                "eth0 (25 Gbit/s, MTU 9000)",
                                                "RDMA over mlx5_0 port 1 (100 Gbit/s)"));
}

TEST_F(NetworkInterfacesTest, OfAMachineWithoutTheFilesAreNone) {
  EXPECT_TRUE(described().empty());
}

}  // namespace
}  // namespace terrace
