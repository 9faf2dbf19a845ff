#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "runtime/bench/fio_peer.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

std::string report(const std::string& read, const std::string& write, int error = 0) {
  return R"({"fio version": "fio-3.33", "jobs": [{"jobname": "terrace", "error": )" +
         std::to_string(error) + R"(, "read": {)" + read + R"(}, "write": {)" + write +
         R"(}, "job_runtime": 1000, "usr_cpu": 0.5, "sys_cpu": 1.5}]})";
}

TEST(FioReport, CountsBothDirectionsAndTheJobsProcessorTime) {
  const IoRate rate = FioPeer::read_report(report(R"("io_bytes": 3000000000, "runtime": 990)",
                                                  R"("io_bytes": 1000000000, "runtime": 1000)"));
  EXPECT_DOUBLE_EQ(rate.gb_per_s, 4.0);
  EXPECT_DOUBLE_EQ(rate.cpu_ms_per_gb, 5.0);  // 2 % of 1000 ms, over 4 GB
}

TEST(FioReport, TextBeforeTheDocumentIsSkipped) {
  const std::string fine =
      report(R"("io_bytes": 1000000000, "runtime": 500)", R"("io_bytes": 0, "runtime": 0)");
  EXPECT_DOUBLE_EQ(FioPeer::read_report("fio: a note\n" + fine).gb_per_s, 2.0);
}

TEST(FioReport, WhatIsNoMeasurementIsRefused) {
  const std::string nothing = R"("io_bytes": 0, "runtime": 0)";
  const std::string some = R"("io_bytes": 1000, "runtime": 10)";
  for (const std::string& bad : {std::string(), std::string("fio: bad option"), std::string("{}"),
                                 report(nothing, nothing), report(some, some, 5), report("", "")}) {
    EXPECT_THROW(FioPeer::read_report(bad), EnvironmentError) << bad;
  }
}

TEST(FioPeer, WritesWithinItsRangeOfEveryFile) {
  if (!FioPeer::find()) GTEST_SKIP() << "fio is not installed";
  TemporaryDirectory directory;
  const std::string before(3 * kMiB, 'x');
  const std::vector<std::string> files = {directory.write("a", before),
                                          directory.write("b", before)};
  const FioPeer fio({.files = files, .scratch = directory.path()});
  constexpr double kSeconds = 0.2;
  fio.run(IoMix::kWrite, {256 * kKiB, 4}, {.begin = kMiB, .bytes = kMiB}, kSeconds);
  for (const std::string& file : files) {
    const std::string after = directory.read(file);
    ASSERT_EQ(after.size(), before.size());
    EXPECT_EQ(after.substr(0, kMiB), before.substr(0, kMiB));
    EXPECT_NE(after.substr(kMiB, kMiB), before.substr(kMiB, kMiB));
    EXPECT_EQ(after.substr(2 * kMiB), before.substr(2 * kMiB));
  }
}

}  // namespace
}  // namespace terrace
