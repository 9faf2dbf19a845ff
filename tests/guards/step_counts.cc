#include "tests/guards/step_counts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include "tests/e2e/program_run.h"
#include "tests/guards/call_counts.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

// The counters of the preloaded library, in a file that both processes map.
class SharedCounts {
 public:
  explicit SharedCounts(const std::string& path) {
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    EXPECT_EQ(ftruncate(file, sizeof(CallCounts)), 0);
    counts_ = static_cast<CallCounts*>(
        mmap(nullptr, sizeof(CallCounts), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    close(file);
  }
  ~SharedCounts() { munmap(counts_, sizeof(CallCounts)); }
  SharedCounts(const SharedCounts&) = delete;
  SharedCounts& operator=(const SharedCounts&) = delete;

  const CallCounts& operator*() const { return *counts_; }

 private:
  CallCounts* counts_;
};

// Returns field 10 of /proc/PID/stat, behind the name, which may have spaces.
double minor_faults(std::int64_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text((std::istreambuf_iterator<char>(file)), {});
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  std::string field;
  for (int i = 3; i <= 10; ++i) fields >> field;
  return field.empty() ? 0 : std::stod(field);
}

// Returns the `time` of each row, in seconds since 1970.
std::vector<double> times_of_rows(const std::string& path) {
  std::vector<double> times;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line) && !file.eof();) {
    times.push_back(nlohmann::json::parse(line).at("time").get<double>());
  }
  return times;
}

bool is_of_memory(std::string_view name) {
  constexpr std::array<std::string_view, 5> kNames = {"mmap", "munmap", "mremap", "brk", "madvise"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

// Adds the call that a line of strace reports: "PID TIME CALL(ARGUMENTS) = RESULT". A call that
// another thread's call interrupts is reported in two lines, "CALL(... <unfinished ...>" and "<...
// CALL resumed>".
void add_line(std::string_view call, StepCounts& counts) {
  if (call.starts_with("+++") || call.starts_with("---")) return;
  const bool is_end = call.starts_with("<... ");
  if (!is_end) {
    counts["system_calls"] += 1;
    if (is_of_memory(call.substr(0, call.find('(')))) counts["maps"] += 1;
  }
  const bool is_futex = call.starts_with(is_end ? "<... futex" : "futex(");
  const std::size_t result = call.rfind(" = ");
  if (!is_futex || result == std::string_view::npos) return;
  counts["wake_ups"] += std::max(0, std::atoi(std::string(call.substr(result + 3)).c_str()));
}

// Counts the system calls in (begin, end], in seconds since 1970.
StepCounts count_calls(const std::string& path, double begin, double end) {
  StepCounts counts = {{"system_calls", 0}, {"maps", 0}, {"wake_ups", 0}};
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string pid;
    double time = 0;
    if (!(fields >> pid >> time) || time <= begin || time > end) continue;
    std::string call;
    std::getline(fields >> std::ws, call);
    add_line(call, counts);
  }
  return counts;
}

StepCounts read_counts(const CallCounts& counts) {
  return {{"allocations", static_cast<double>(counts.allocations.load())},
          {"copied_bytes", static_cast<double>(counts.copied_bytes.load())},
          {"minor_faults", minor_faults(counts.pid)}};
}

std::vector<std::string> tracer(const TemporaryDirectory& directory) {
  return {"strace",
          "-f",
          "--seccomp-bpf",
          "-qq",
          "-ttt",
          "-e",
          "trace=!sched_yield",
          "-o",
          directory.path("calls"),
          "-E",
          std::string("LD_PRELOAD=") + TERRACE_CALL_COUNTER,
          "-E",
          fmt::format("{}={}", kCallCountsPath, directory.path("counts"))};
}

}  // namespace

bool can_count() {
  ProgramRun probe(Command{{"strace", "-f", "--seccomp-bpf", "-qq", "-o", "/dev/null", "true"}});
  return probe.wait().code == 0;
}

StepCounts count_steps(const CountedRun& run) {
  const TemporaryDirectory directory;
  const SharedCounts shared(directory.path("counts"));
  const std::size_t first = static_cast<std::size_t>(run.warm_steps);
  const std::size_t last = first + static_cast<std::size_t>(run.counted_steps);
  std::vector<std::string> arguments = run.arguments;
  for (const std::string& word : {std::string("--max-steps"), std::to_string(last + 1),
                                  std::string("--run-dir"), directory.path("run")}) {
    arguments.push_back(word);
  }
  ProgramRun program(arguments, {}, tracer(directory));
  const auto has_rows = [&](std::size_t rows) {
    return times_of_rows(directory.path("run/metrics.jsonl")).size() >= rows;
  };
  program.wait_until([&] { return has_rows(first); });
  const StepCounts before = read_counts(*shared);
  program.wait_until([&] { return has_rows(last); });
  const StepCounts after = read_counts(*shared);
  const Outcome outcome = program.wait();
  EXPECT_EQ(outcome.code, 0) << outcome;
  const std::vector<double> times = times_of_rows(directory.path("run/metrics.jsonl"));
  if (times.size() < last) return {};
  StepCounts counts = count_calls(directory.path("calls"), times[first - 1], times[last - 1]);
  for (const auto& [name, value] : after) counts[name] = value - before.at(name);
  for (auto& [name, value] : counts) value /= run.counted_steps;
  return counts;
}

}  // namespace terrace
