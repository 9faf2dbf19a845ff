#include "runtime/report/report_file.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "runtime/report/prometheus_text.h"
#include "runtime/report/report_page.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace::report {
namespace {

TEST(ReportFile, ReplacesReportsAndNothingElse) {
  const TemporaryDirectory directory;
  const std::string page = directory.path("report.html");
  write_report_file(page, std::string("<html>") + kPageMark);
  write_report_file(page, std::string(kPrometheusMark) + "\n");
  write_report_file(page, "else");
  EXPECT_EQ(directory.read("report.html"), "else");
  TERRACE_EXPECT_THROW_WITH(write_report_file(page, "new"), ConfigError, "is not a report");
  EXPECT_EQ(directory.read("report.html"), "else");
  const std::string empty = directory.write("empty", "");
  TERRACE_EXPECT_THROW_WITH(write_report_file(empty, "new"), ConfigError, "is not a report");
}

TEST(ReportFile, RefusesDirectoriesAndMissingOnes) {
  const TemporaryDirectory directory;
  TERRACE_EXPECT_THROW_WITH(check_report_file(directory.path()), ConfigError, "is a directory");
  TERRACE_EXPECT_THROW_WITH(check_report_file(directory.path("none/report.html")), ConfigError,
                            "none does not exist");
  TERRACE_EXPECT_THROW_WITH(check_report_file("/dev/null"), ConfigError, "not a regular file");
}

}  // namespace
}  // namespace terrace::report
