#include "bench/fio_peer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"

namespace terrace {
namespace {

// Returns what fio says besides its document, which does not tell why there is no measurement.
std::string remarks_of(const std::string& said) {
  std::string remarks;
  bool in_document = false;
  for (std::size_t at = 0; at < said.size();) {
    const std::size_t end = std::min(said.find('\n', at), said.size());
    const std::string line = said.substr(at, end - at);
    at = end + 1;
    in_document = in_document || line == "{";
    if (!in_document && !line.empty()) remarks += (remarks.empty() ? "" : "; ") + line;
    in_document = in_document && line != "}";
  }
  return remarks;
}

[[noreturn]] void refuse(const ChildOutcome& outcome, const std::string& why) {
  constexpr std::size_t kMost = 400;
  const std::string remarks = remarks_of(outcome.output);
  const std::string end = outcome.signal != 0 ? fmt::format("signal {} ended it", outcome.signal)
                                              : fmt::format("its exit code is {}", outcome.code);
  throw EnvironmentError(
      fmt::format("fio failed to measure: {}; {}", end, remarks.empty() ? why : remarks)
          .substr(0, kMost),
      "run fio by hand, or remove it from PATH to measure without it");
}

const char* engine_for(IoWay way) { return way == IoWay::kThreads ? "libaio" : "io_uring"; }

IoRate rate_of(const nlohmann::json& job) {
  double bytes = 0;
  double runtime_ms = 0;
  for (const char* direction : {"read", "write"}) {
    bytes += job.at(direction).at("io_bytes").get<double>();
    runtime_ms = std::max(runtime_ms, job.at(direction).at("runtime").get<double>());
  }
  if (bytes == 0 || runtime_ms == 0) return {};
  const double percent = job.at("usr_cpu").get<double>() + job.at("sys_cpu").get<double>();
  const double cpu_ms = percent / 100 * job.at("job_runtime").get<double>();
  return {.gb_per_s = bytes / (runtime_ms * 1e6), .cpu_ms_per_gb = cpu_ms / (bytes * 1e-9)};
}

}  // namespace

std::optional<std::string> FioPeer::find() {
  const ChildOutcome outcome = run_child({.command = {"fio", "--version"}, .environment = {}});
  const std::string& said = outcome.output;
  if (outcome.code != 0 || !said.starts_with("fio-")) return std::nullopt;
  return said.substr(0, said.find('\n'));
}

std::vector<std::string> FioPeer::arguments(IoMix mix, const IoShape& shape, const FileRange& range,
                                            double seconds) const {
  constexpr double kMilliseconds = 1e3;  // whole ones: fio reads "58.8ms" as seconds
  std::vector<std::string> files;
  for (const int file : target_.files) files.push_back(fmt::format("/proc/self/fd/{}", file));
  std::vector<std::string> arguments = {
      "fio", "--name=terrace", fmt::format("--filename={}", fmt::join(files, ":")),
      fmt::format("--offset={}", range.begin), fmt::format("--size={}", range.bytes * files.size()),
      // fio calls both directions "rw".
      fmt::format("--rw={}", mix == IoMix::kMixed ? "rw" : name_of(mix)),
      fmt::format("--bs={}", shape.block_bytes), fmt::format("--iodepth={}", shape.depth),
      fmt::format("--ioengine={}", engine_for(target_.way)),
      fmt::format("--direct={}", target_.direct ? 1 : 0), "--iomem=malloc", "--iomem_align=2m",
      "--time_based=1", fmt::format("--runtime={:.0f}ms", std::max(1.0, seconds * kMilliseconds)),
      "--fallocate=none", "--invalidate=0", "--allow_file_create=0", "--gtod_reduce=1",
      "--scramble_buffers=0", "--thread=1", "--output-format=json"};
  if (target_.way != IoWay::kThreads) arguments.emplace_back("--registerfiles=1");
  if (target_.way == IoWay::kRegistered) arguments.emplace_back("--fixedbufs=1");
  return arguments;
}

IoRate FioPeer::run(IoMix mix, const IoShape& shape, const FileRange& range, double seconds) const {
  // With this variable and fio's alignment of its buffers, they are on huge pages, and the
  // administrator need not set pages aside.
  return read_report(run_child({.command = arguments(mix, shape, range, seconds),
                                .environment = {"GLIBC_TUNABLES=glibc.malloc.hugetlb=1"},
                                .files = target_.files}));
}

IoRate FioPeer::read_report(const ChildOutcome& outcome) {
  if (outcome.code != 0 || outcome.signal != 0) refuse(outcome, "it printed nothing");
  // fio may say something before the document.
  const std::string& said = outcome.output;
  const std::size_t begin = std::min(said.find('{'), said.size());
  const auto document = nlohmann::json::parse(said.substr(begin), nullptr, false);
  if (document.is_discarded()) refuse(outcome, "it printed no JSON document");
  try {
    const auto& job = document.at("jobs").at(0);
    const int error = job.at("error").get<int>();
    if (error != 0) refuse(outcome, fmt::format("its job ended with error {}", error));
    const IoRate rate = rate_of(job);
    if (rate.gb_per_s == 0) refuse(outcome, "it transferred no bytes");
    return rate;
  } catch (const nlohmann::json::exception& error) {
    refuse(outcome, error.what());
  }
}

}  // namespace terrace
