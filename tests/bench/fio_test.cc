#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "bench/fio_peer.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

std::string report(const std::string& read, const std::string& write, int error = 0) {
  return R"({"fio version": "fio-3.33", "jobs": [{"jobname": "terrace", "error": )" +
         std::to_string(error) + R"(, "read": {)" + read + R"(}, "write": {)" + write +
         R"(}, "job_runtime": 1000, "usr_cpu": 0.5, "sys_cpu": 1.5}]})";
}

ChildOutcome said(const std::string& text) { return {.code = 0, .signal = 0, .output = text}; }

TEST(FioReport, CountsBothDirectionsAndTheJobsProcessorTime) {
  const IoRate rate = FioPeer::read_report(said(report(
      R"("io_bytes": 3000000000, "runtime": 990)", R"("io_bytes": 1000000000, "runtime": 1000)")));
  EXPECT_DOUBLE_EQ(rate.gb_per_s, 4.0);
  EXPECT_DOUBLE_EQ(rate.cpu_ms_per_gb, 5.0);  // 2 % of 1000 ms, over 4 GB
}

TEST(FioReport, TextBeforeTheDocumentIsSkipped) {
  const std::string fine =
      report(R"("io_bytes": 1000000000, "runtime": 500)", R"("io_bytes": 0, "runtime": 0)");
  EXPECT_DOUBLE_EQ(FioPeer::read_report(said("fio: a note\n" + fine)).gb_per_s, 2.0);
}

TEST(FioReport, WhatIsNoMeasurementIsRefused) {
  const std::string nothing = R"("io_bytes": 0, "runtime": 0)";
  const std::string some = R"("io_bytes": 1000, "runtime": 10)";
  for (const std::string& bad : {std::string(), std::string("fio: bad option"), std::string("{}"),
                                 report(nothing, nothing), report(some, some, 5), report("", "")}) {
    EXPECT_THROW(FioPeer::read_report(said(bad)), EnvironmentError) << bad;
  }
}

// The error has what fio said in words, without the document, and how fio ended if it said nothing.
TEST(FioReport, WhyThereIsNoMeasurementIsTold) {
  const auto told = [](const ChildOutcome& outcome) {
    try {
      FioPeer::read_report(outcome);
    } catch (const EnvironmentError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string document = "{\n  \"fio version\" : \"fio-3.33\"\n}\n";
  const std::string refused = told({.code = 1, .output = "fio: no such engine\n" + document});
  EXPECT_THAT(refused,
              testing::HasSubstr("fio failed to measure: its exit code is 1; fio: no such"));
  EXPECT_THAT(refused, testing::Not(testing::HasSubstr("fio version")));
  EXPECT_THAT(told({.code = 3, .output = ""}),
              testing::HasSubstr("its exit code is 3; it printed nothing"));
  EXPECT_THAT(told({.code = 127, .signal = 9, .output = ""}),
              testing::HasSubstr("signal 9 ended it; it printed nothing"));
}

TEST(FioPeer, IsFoundWhereThereIsNoDirectoryOfTemporaryFiles) {
  const std::optional<std::string> version = FioPeer::find();
  const char* const before = std::getenv("TMPDIR");
  const std::string kept = before == nullptr ? "" : before;
  ::setenv("TMPDIR", "/nonexistent", 1);
  EXPECT_EQ(FioPeer::find(), version);
  before == nullptr ? ::unsetenv("TMPDIR") : ::setenv("TMPDIR", kept.c_str(), 1);
}

// Expects writes within the range, in files that have no names.
void expect_writes_within_range(IoWay way) {
  const TemporaryDirectory directory;
  const std::string before(3 * kMiB, 'x');
  std::vector<int> files;
  for (const char* name : {"a", "b"}) {
    const std::string path = directory.write(name, before);
    files.push_back(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_LE(0, files.back());
    ASSERT_EQ(::unlink(path.c_str()), 0);
  }
  const FioPeer fio({.files = files, .way = way});
  constexpr double kSeconds = 0.2;
  fio.run(IoMix::kWrite, {256 * kKiB, 4}, {.begin = kMiB, .bytes = kMiB}, kSeconds);
  for (const int file : files) {
    std::string after(before.size(), ' ');
    ASSERT_EQ(::pread(file, after.data(), after.size(), 0), static_cast<ssize_t>(after.size()));
    EXPECT_EQ(after.substr(0, kMiB), before.substr(0, kMiB));
    EXPECT_NE(after.substr(kMiB, kMiB), before.substr(kMiB, kMiB));
    EXPECT_EQ(after.substr(2 * kMiB), before.substr(2 * kMiB));
    ::close(file);
  }
}

TEST(FioPeer, WritesWithinItsRangeOfEveryFile) {
  if (!FioPeer::find()) GTEST_SKIP() << "fio is not installed";
  expect_writes_within_range(IoWay::kUring);
}

TEST(FioPeer, WritesWithinItsRangeWhereIoUringIsForbidden) {
  if (!FioPeer::find()) GTEST_SKIP() << "fio is not installed";
  expect_writes_within_range(IoWay::kThreads);
}

// fio would take a fraction of a millisecond for many seconds.
TEST(FioPeer, IsToldWholeMilliseconds) {
  const TemporaryDirectory directory;
  const std::string fine =
      report(R"("io_bytes": 1000000000, "runtime": 500)", R"("io_bytes": 0, "runtime": 0)");
  const std::string script =
      "#!/bin/sh\necho \"$@\" > " + directory.path("said") + "\necho '" + fine + "'\n";
  std::filesystem::permissions(directory.write("bin/fio", script),
                               std::filesystem::perms::owner_all);
  const std::string path = std::getenv("PATH");
  ::setenv("PATH", (directory.path("bin") + ":" + path).c_str(), 1);
  const FioPeer peer({.files = {}, .way = IoWay::kRegistered, .direct = true});
  peer.run(IoMix::kRead, {kMiB, 4}, {.begin = 0, .bytes = kMiB}, 0.0588235);
  ::setenv("PATH", path.c_str(), 1);
  EXPECT_THAT(directory.read("said"), testing::HasSubstr(" --runtime=59ms "));
}

}  // namespace
}  // namespace terrace
