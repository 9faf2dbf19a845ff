#include "runtime/report/report_file.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "runtime/checkpoint/durable_file.h"
#include "runtime/report/prometheus_text.h"
#include "runtime/report/report_page.h"

namespace terrace::report {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOtherName = "name another file, or remove this one";

bool is_report(const std::string& path) {
  constexpr std::size_t kHeadBytes = 1024;
  std::string head(kHeadBytes, '\0');
  std::ifstream stream(path, std::ios::binary);
  stream.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<std::size_t>(stream.gcount()));
  return head.starts_with(kPrometheusMark) || head.find(kPageMark) != std::string::npos;
}

}  // namespace

void check_report_file(const std::string& path) {
  std::error_code failed;
  const fs::file_status status = fs::status(path, failed);
  if (fs::is_directory(status)) {
    throw ConfigError(fmt::format("--output: {} is a directory", path),
                      "name a file in it, for example report.html");
  }
  const fs::path directory = fs::absolute(path).parent_path();
  if (!fs::is_directory(directory, failed)) {
    throw ConfigError(fmt::format("--output: the directory {} does not exist", directory.string()),
                      "make it, or name a file elsewhere");
  }
  if (!fs::exists(status)) return;
  if (!fs::is_regular_file(status)) {
    throw ConfigError(fmt::format("--output: {} is not a regular file", path), "name another file");
  }
  if (!is_report(path)) {
    throw ConfigError(
        fmt::format("--output: {} exists and is not a report, so it is not overwritten", path),
        kOtherName);
  }
}

void write_report_file(const std::string& path, std::string_view content) {
  check_report_file(path);
  write_durable_file(path, content);
}

}  // namespace terrace::report
