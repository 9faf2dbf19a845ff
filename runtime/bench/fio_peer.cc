#include "runtime/bench/fio_peer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "runtime/bench/child_program.h"

namespace terrace {
namespace {

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

[[noreturn]] void refuse(const std::string& said) {
  constexpr std::size_t kMost = 400;
  throw EnvironmentError(fmt::format("fio did not measure: {}", said.substr(0, kMost)),
                         "run it by hand, or take it out of PATH to measure without it");
}

}  // namespace

std::optional<std::string> FioPeer::find() {
  std::string scratch = (std::filesystem::temp_directory_path() / "terrace-fio-XXXXXX").string();
  const int file = ::mkstemp(scratch.data());
  if (file < 0) return std::nullopt;
  ::close(file);
  const int code =
      run_child({.command = {"fio", "--version"}, .environment = {}, .output_file = scratch});
  std::string said = content_of(scratch);
  std::filesystem::remove(scratch);
  if (code != 0 || !said.starts_with("fio-")) return std::nullopt;
  return said.substr(0, said.find('\n'));
}

std::vector<std::string> FioPeer::arguments(IoMix mix, const IoShape& shape, const FileRange& range,
                                            double seconds) const {
  constexpr double kMilliseconds = 1e3;
  return {"fio", "--name=terrace", fmt::format("--filename={}", fmt::join(target_.files, ":")),
          fmt::format("--offset={}", range.begin),
          fmt::format("--size={}", range.bytes * target_.files.size()),
          // Of both directions fio says "rw".
          fmt::format("--rw={}", mix == IoMix::kMixed ? "rw" : name_of(mix)),
          fmt::format("--bs={}", shape.block_bytes), fmt::format("--iodepth={}", shape.depth),
          "--ioengine=io_uring", "--direct=1", "--fixedbufs=1", "--registerfiles=1",
          "--iomem=malloc", "--iomem_align=2m", "--time_based=1",
          fmt::format("--runtime={}ms", std::max(1.0, seconds * kMilliseconds)), "--fallocate=none",
          "--invalidate=0", "--allow_file_create=0", "--gtod_reduce=1", "--scramble_buffers=0",
          "--thread=1", "--output-format=json"};
}

IoRate FioPeer::run(IoMix mix, const IoShape& shape, const FileRange& range, double seconds) const {
  const std::string output = target_.scratch + "/fio.json";
  // With their alignment, its buffers then are on huge pages, without pages that the administrator
  // has to set aside.
  const int code = run_child({.command = arguments(mix, shape, range, seconds),
                              .environment = {"GLIBC_TUNABLES=glibc.malloc.hugetlb=1"},
                              .output_file = output});
  const std::string said = content_of(output);
  std::filesystem::remove(output);
  if (code != 0) refuse(said);
  return read_report(said);
}

IoRate FioPeer::read_report(const std::string& json) {
  // It may say something before the document.
  const std::size_t begin = json.find('{');
  const auto document =
      nlohmann::json::parse(json.substr(std::min(begin, json.size())), nullptr, false);
  if (document.is_discarded() || !document.contains("jobs")) refuse(json);
  try {
    const auto& job = document.at("jobs").at(0);
    if (job.at("error").get<int>() != 0) refuse(job.dump());
    double bytes = 0;
    double runtime_ms = 0;
    for (const char* direction : {"read", "write"}) {
      bytes += job.at(direction).at("io_bytes").get<double>();
      runtime_ms = std::max(runtime_ms, job.at(direction).at("runtime").get<double>());
    }
    if (bytes == 0 || runtime_ms == 0) refuse(job.dump());
    const double percent = job.at("usr_cpu").get<double>() + job.at("sys_cpu").get<double>();
    const double cpu_ms = percent / 100 * job.at("job_runtime").get<double>();
    return {.gb_per_s = bytes / (runtime_ms * 1e6), .cpu_ms_per_gb = cpu_ms / (bytes * 1e-9)};
  } catch (const nlohmann::json::exception& error) {
    refuse(error.what());
  }
}

}  // namespace terrace
