#include "parallel/network_traffic.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

constexpr const char* kInterfaces =
    "Inter-|   Receive                                                |  Transmit\n"
    " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs\n"
    "    lo: 500 5 0 0 0 0 0 0 600 5 0 0 0 0 0 0\n"
    "  eth0:1000 9 0 0 0 0 0 0 7000000000 9 0 0 0 0 0 0\n";

class NetworkTrafficTest : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_.path(path);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  TemporaryDirectory root_;
};

TEST_F(NetworkTrafficTest, ReadsInterfacesAndRdmaPorts) {
  write("proc/net/dev", kInterfaces);
  write("sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data", "250\n");
  EXPECT_EQ(read_network_traffic(root_.path()),
            (NetworkTraffic{{"sockets over lo", 600},
                            {"sockets over eth0", 7'000'000'000},
                            {"RDMA over mlx5_0 port 1", 1000}}));
}

TEST_F(NetworkTrafficTest, AMachineWithoutTheFilesHasNoCounters) {
  EXPECT_TRUE(read_network_traffic(root_.path()).empty());
}

TEST(NetworkThatCarried, IsTheOneThatSentMost) {
  const NetworkTraffic before = {{"sockets over eth0", 10}, {"RDMA over a port 1", 50}};
  const auto carried = [&](std::uint64_t sockets, std::uint64_t rdma) {
    return network_that_carried(
        before, {{"sockets over eth0", sockets}, {"RDMA over a port 1", rdma}}, 100);
  };
  EXPECT_EQ(carried(115, 50), "sockets over eth0");
  EXPECT_EQ(carried(20, 160), "RDMA over a port 1");
  EXPECT_EQ(carried(70, 150), "RDMA over a port 1");
  EXPECT_EQ(carried(20, 60), "");
  EXPECT_EQ(carried(0, 0), "");  // counters that were reset
}

}  // namespace
}  // namespace terrace
