#include "memory/host/host_limits.h"

#include <gtest/gtest.h>
#include <stdlib.h>  // NOLINT: mkdtemp is not in <cstdlib>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "memory/host/cpu_mask.h"

namespace terrace {
namespace {

// A root directory with files of /proc and /sys that a test writes.
class HostLimitsTest : public testing::Test {
 protected:
  HostLimitsTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "terrace-root-XXXXXX").string();
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    write("proc/meminfo",
          "MemTotal:       16777216 kB\n"
          "MemFree:         1048576 kB\n"
          "MemAvailable:   12582912 kB\n");
  }

 public:
  ~HostLimitsTest() override { std::filesystem::remove_all(root_); }

 protected:
  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  HostLimits read() const { return read_host_limits(root_.string()); }

  std::filesystem::path root_;
};

TEST_F(HostLimitsTest, WithoutCgroups) {
  const HostLimits limits = read();
  EXPECT_EQ(limits.total_bytes, 16 * kGiB);
  EXPECT_EQ(limits.available_bytes, 12 * kGiB);
  EXPECT_FALSE(limits.cgroup_limit_bytes.has_value());
  EXPECT_FALSE(limits.cgroup_cpus.has_value());
  EXPECT_EQ(limits.usable_bytes(), 12 * kGiB);
  EXPECT_LE(1, limits.affinity_cpus);
  EXPECT_LT(0U, limits.memlock_limit_bytes);
}

TEST_F(HostLimitsTest, OldKernelsDoNotSayWhatIsAvailable) {
  write("proc/meminfo", "MemTotal: 2048 kB\nMemFree: 1024 kB\n");
  EXPECT_EQ(read().available_bytes, kMiB);
}

TEST_F(HostLimitsTest, RefusesAMachineThatSaysNothing) {
  write("proc/meminfo", "nonsense\n");
  EXPECT_THROW(read(), EnvironmentError);
  std::filesystem::remove(root_ / "proc/meminfo");
  EXPECT_THROW(read(), EnvironmentError);
}

TEST_F(HostLimitsTest, Version2TakesTheLimitThatLeavesTheLeast) {
  write("proc/self/cgroup", "0::/user/job/step\n");
  write("sys/fs/cgroup/user/job/step/memory.max", "max\n");
  write("sys/fs/cgroup/user/job/step/memory.current", "1073741824\n");
  write("sys/fs/cgroup/user/job/memory.max", "4294967296\n");
  write("sys/fs/cgroup/user/job/memory.current", "2147483648\n");
  write("sys/fs/cgroup/user/job/memory.stat", "anon 1\ninactive_file 1073741824\nfile 5\n");
  write("sys/fs/cgroup/user/memory.max", "6442450944\n");
  write("sys/fs/cgroup/user/memory.current", "2147483648\n");
  HostLimits limits = read();
  EXPECT_EQ(limits.cgroup_limit_bytes, 4 * kGiB);
  EXPECT_EQ(limits.cgroup_used_bytes, kGiB);
  EXPECT_EQ(limits.usable_bytes(), 3 * kGiB);

  // Siblings have used up the parent's memory. The parent counts then, though its limit is larger.
  write("sys/fs/cgroup/user/memory.current", "5368709120\n");
  limits = read();
  EXPECT_EQ(limits.cgroup_limit_bytes, 6 * kGiB);
  EXPECT_EQ(limits.usable_bytes(), kGiB);
}

// ulimit -v applies to each process by itself.
TEST_F(HostLimitsTest, TheLimitOnAddressesLeavesLess) {
  HostLimits limits = read();
  limits.addresses = {.limit_bytes = 2 * kGiB, .used_bytes = kGiB / 2};
  EXPECT_EQ(limits.usable_bytes(), 3 * kGiB / 2);
  EXPECT_EQ(limits.usable_by_host_bytes(), 12 * kGiB);
  EXPECT_EQ(describe_free(limits),
            "1.50 GiB left of the address space that ulimit -v allows (2.00 GiB)");
  EXPECT_EQ(remedy_for_memory(limits), "raise ulimit -v");
  limits.addresses = {};
  EXPECT_EQ(describe_free(limits), "12.0 GiB free");
  EXPECT_EQ(remedy_for_memory(limits), "free memory on this machine");
}

TEST_F(HostLimitsTest, CgroupOverItsLimitLeavesNothing) {
  write("proc/self/cgroup", "0::/job\n");
  write("sys/fs/cgroup/job/memory.max", "1073741824\n");
  write("sys/fs/cgroup/job/memory.current", "1073745920\n");
  EXPECT_EQ(read().usable_bytes(), 0U);
}

TEST_F(HostLimitsTest, AvailableMayBeLessThanTheCgroupLeaves) {
  write("proc/self/cgroup", "0::/job\n");
  write("sys/fs/cgroup/job/memory.max", "15032385536\n");
  EXPECT_EQ(read().usable_bytes(), 12 * kGiB);
}

TEST_F(HostLimitsTest, Version1) {
  write("proc/self/cgroup",
        "9:name=systemd:/\n"
        "4:memory:/docker/abc\n"
        "2:cpu,cpuacct:/docker/abc\n"
        "0::/\n");
  write("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "2147483648\n");
  write("sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "1610612736\n");
  write("sys/fs/cgroup/memory/docker/abc/memory.stat",
        "inactive_file 1\ntotal_inactive_file 536870912\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "250000\n");
  write("sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  const HostLimits limits = read();
  EXPECT_EQ(limits.cgroup_limit_bytes, 2 * kGiB);
  EXPECT_EQ(limits.cgroup_used_bytes, kGiB);
  EXPECT_EQ(limits.usable_bytes(), kGiB);
  EXPECT_EQ(limits.cgroup_cpus, 2.5);
}

// A container sees its own cgroup as the root of the mount, and a path that is only on the host.
TEST_F(HostLimitsTest, PathOfTheHostInAContainer) {
  write("proc/self/cgroup", "4:memory:/docker/not-here\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "3221225472\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "0\n");
  EXPECT_EQ(read().usable_bytes(), 3 * kGiB);
}

// The process has a cgroup namespace of its own, with the host's tree mounted into it.
TEST_F(HostLimitsTest, NamespaceOfItsOwnUnderTheTreeOfTheHost) {
  const std::string own = std::to_string(::getpid()) + "\n";
  write("proc/self/cgroup", "4:memory:/\n3:cpu,cpuacct:/step\n0::/\n");
  write("proc/self/mountinfo",
        "35 31 0:32 /../.. /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
        "36 31 0:33 /.. /sys/fs/cgroup/cpu rw,relatime shared:3 - cgroup cgroup rw,cpu,cpuacct\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/pods/other/cgroup.procs", "1\n7\n");
  write("sys/fs/cgroup/memory/pods/other/memory.limit_in_bytes", "4096\n");
  write("sys/fs/cgroup/memory/pods/mine/cgroup.procs", "1\n" + own);
  write("sys/fs/cgroup/memory/pods/mine/memory.limit_in_bytes", "2147483648\n");
  write("sys/fs/cgroup/memory/pods/memory.limit_in_bytes", "1073741824\n");
  for (const std::string pod : {"a", "b"}) {
    const std::string step = "sys/fs/cgroup/cpu/" + pod + "/step/";
    write(step + "cgroup.procs", pod == "b" ? own : "");
    write(step + "cpu.cfs_quota_us", pod == "b" ? "150000\n" : "10000\n");
    write(step + "cpu.cfs_period_us", "100000\n");
  }
  const HostLimits limits = read();
  EXPECT_EQ(limits.cgroup_limit_bytes, kGiB);
  EXPECT_EQ(limits.cgroup_cpus, 1.5);
}

TEST_F(HostLimitsTest, NamespaceOfItsOwnInVersion2) {
  write("proc/self/cgroup", "0::/\n");
  write("proc/self/mountinfo", "30 23 0:26 /.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  write("sys/fs/cgroup/job/cgroup.procs", std::to_string(::getpid()) + "\n");
  write("sys/fs/cgroup/job/memory.max", "1073741824\n");
  write("sys/fs/cgroup/other/memory.max", "4096\n");
  EXPECT_EQ(read().cgroup_limit_bytes, kGiB);
}

// A container that sees its part of the tree and the host's paths. It is in a cgroup below that
// part.
TEST_F(HostLimitsTest, PartOfTheTreeInAContainer) {
  write("proc/self/cgroup", "4:memory:/docker/abc/worker\n");
  write("proc/self/mountinfo",
        "35 31 0:32 /docker/abc /cgroups/a\\040b rw - cgroup cgroup rw,memory\n");
  write("cgroups/a b/memory.limit_in_bytes", "3221225472\n");
  write("cgroups/a b/worker/memory.limit_in_bytes", "1073741824\n");
  EXPECT_EQ(read().cgroup_limit_bytes, kGiB);
}

// A process that was moved out of its namespace may be in a cgroup that cannot be seen.
TEST_F(HostLimitsTest, CgroupThatIsNotFoundHasTheLimitOfTheMount) {
  write("proc/self/mountinfo", "30 23 0:26 /.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  write("sys/fs/cgroup/memory.max", "2147483648\n");
  write("sys/fs/cgroup/other/memory.max", "4096\n");
  write("sys/fs/cgroup/other/cgroup.procs", "1\n");
  for (const char* path : {"/", "/../../elsewhere", "/nowhere"}) {
    write("proc/self/cgroup", std::string("0::") + path + "\n");
    EXPECT_EQ(read().cgroup_limit_bytes, 2 * kGiB) << path;
  }
}

TEST_F(HostLimitsTest, Version2InAHybridTree) {
  write("proc/self/cgroup", "1:name=systemd:/\n0::/job\n");
  write("sys/fs/cgroup/unified/job/memory.max", "1073741824\n");
  EXPECT_EQ(read().cgroup_limit_bytes, kGiB);
}

TEST_F(HostLimitsTest, CpuQuotaIsTheTightestOnThePath) {
  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  EXPECT_EQ(read().cgroup_cpus, 1.5);
  write("sys/fs/cgroup/a/b/cpu.max", "50000 100000\n");
  EXPECT_EQ(read().cgroup_cpus, 0.5);
}

TEST_F(HostLimitsTest, LinesThatAreNotUnderstoodAreSkipped) {
  write("proc/self/cgroup", "\ngarbage\n7:\n:::\n0::relative\n");
  EXPECT_FALSE(read().cgroup_limit_bytes.has_value());
}

TEST(HostLimitsArithmeticTest, UsableCpus) {
  HostLimits limits;
  limits.affinity_cpus = 8;
  EXPECT_EQ(limits.usable_cpus(), 8);
  limits.cgroup_cpus = 2.9;
  EXPECT_EQ(limits.usable_cpus(), 2);
  limits.cgroup_cpus = 0.5;
  EXPECT_EQ(limits.usable_cpus(), 1);
  limits.cgroup_cpus = 100.0;
  EXPECT_EQ(limits.usable_cpus(), 8);
}

TEST(HostLimitsOfThisMachineTest, AreSane) {
  const HostLimits limits = read_host_limits();
  EXPECT_LT(0U, limits.total_bytes);
  EXPECT_LE(limits.available_bytes, limits.total_bytes);
  EXPECT_LT(0U, limits.usable_bytes());
  EXPECT_LE(limits.usable_cpus(), limits.affinity_cpus);
}

TEST(HostLimitsOfThisMachineTest, AThreadMayUseTheProcessorsOfItsMask) {
  const std::vector<int> before = cpus_of_thread();
  ASSERT_TRUE(confine_thread(std::vector<int>{before.back()}));
  const HostLimits confined = read_host_limits();
  ASSERT_TRUE(confine_thread(before));
  EXPECT_EQ(confined.affinity_cpus, 1);
  EXPECT_EQ(confined.usable_cpus(), 1);
  EXPECT_EQ(read_host_limits().affinity_cpus, static_cast<int>(before.size()));
}

}  // namespace
}  // namespace terrace
