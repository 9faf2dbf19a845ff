#include "memory/cuda/gpu_inventory.h"

#include <gtest/gtest.h>
#include <stdlib.h>  // NOLINT: mkdtemp is not in <cstdlib>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "memory/cuda/cuda_device.h"
#include "memory/cuda/host_registration.h"
#include "memory/host/host_memory.h"

namespace terrace {
namespace {

TEST(GpuInventory, WithoutADriverSaysSo) {
  const GpuInventory inventory = read_gpu_inventory("libnvidia-ml-that-is-not-there.so.1");
  EXPECT_EQ(inventory.remark, "no CUDA driver");
  EXPECT_TRUE(inventory.driver_version.empty());
  EXPECT_TRUE(inventory.gpus.empty());
}

TEST(GpuInventory, TellsWhatNvmlTells) {
  std::string pattern = (std::filesystem::temp_directory_path() / "terrace-gpus-XXXXXX").string();
  ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
  const std::filesystem::path devices = pattern;
  std::filesystem::create_directories(devices / "0000:3b:00.0");
  std::ofstream(devices / "0000:3b:00.0" / "numa_node") << "1\n";
  const GpuInventory inventory = read_gpu_inventory(TERRACE_FAKE_NVML, devices.string());
  std::filesystem::remove_all(devices);
  EXPECT_EQ(inventory.driver_version, "999.01");
  EXPECT_EQ(inventory.remark, "");
  ASSERT_EQ(inventory.gpus.size(), 2U);
  EXPECT_EQ(inventory.gpus[0].name, "Pretended GPU 0");
  EXPECT_EQ(inventory.gpus[0].pci_address, "0000:3a:00.0");
  EXPECT_EQ(inventory.gpus[0].numa_node, -1);
  EXPECT_EQ(inventory.gpus[1].pci_address, "0000:3b:00.0");
  EXPECT_EQ(inventory.gpus[1].numa_node, 1);
  EXPECT_EQ(inventory.gpus[1].memory_bytes, std::size_t{80} << 30);
  EXPECT_EQ(inventory.gpus[1].link_generation, 1U);
  EXPECT_EQ(inventory.gpus[1].link_generation_max, 5U);
  EXPECT_EQ(inventory.gpus[1].link_lanes, 16U);
  EXPECT_EQ(inventory.gpus[1].link_lanes_max, 0U);
}

TEST(GpuInventory, ALinkCarriesWhatItsGenerationAndLanesSay) {
  GpuFacts gpu;
  EXPECT_EQ(link_bytes_per_s(gpu), 0) << "nothing is known";
  gpu.link_generation = 1;  // asleep
  gpu.link_generation_max = 5;
  gpu.link_lanes = 16;
  // Measured on an H200, in bench/results.
  EXPECT_NEAR(link_bytes_per_s(gpu), 55.4e9, 0.5e9);
  gpu.link_generation_max = 4;
  EXPECT_NEAR(link_bytes_per_s(gpu), 55.4e9 / 2, 0.5e9);
  gpu.link_lanes = 8;
  EXPECT_NEAR(link_bytes_per_s(gpu), 55.4e9 / 4, 0.5e9);
  gpu.link_generation_max = 9;
  EXPECT_GT(link_bytes_per_s(gpu), 50e9) << "a later generation is no slower";
}

// Holds in a build without CUDA, and in a build with CUDA on a machine without a driver.
TEST(CudaDevice, WithoutAGpuRefusesWithARemedy) {
  if (cuda_device_count() > 0) return;
  EXPECT_THROW(cuda_capacity_bytes(0), EnvironmentError);
  EXPECT_THROW(describe_cuda_device(0), EnvironmentError);
  const HostMemory memory(4096, HostMemoryOptions{});
  EXPECT_THROW(HostRegistration(memory.bytes()), EnvironmentError);
  try {
    make_cuda_device({});
    FAIL() << "made a device without a GPU";
  } catch (const EnvironmentError& error) {
    EXPECT_FALSE(error.remedy().empty());
  }
}

}  // namespace
}  // namespace terrace
