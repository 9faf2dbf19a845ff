#include "runtime/train/run_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "memory/host/host_limits.h"
#include "memory/host/topology.h"
#include "runtime/checkpoint/durable_file.h"
#include "runtime/config/version.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

std::string time_text(const char* format) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), format, &parts);
  return text.data();
}

nlohmann::ordered_json host_facts() {
  utsname system{};
  uname(&system);
  const Topology topology = read_topology();
  const HostLimits limits = read_host_limits();
  return {{"cpu", topology.cpu_model},
          {"cpus", limits.usable_cpus()},
          {"memory_bytes", limits.total_bytes},
          {"kernel", std::string(system.release)}};
}

}  // namespace

std::string make_run_directory(const TrainOptions& options) {
  fs::path path = options.run.run_dir;
  if (path.empty()) {
    const std::string model = fs::path(options.model.model).filename().string();
    path = fs::path("runs") / (model + time_text("-%Y%m%d-%H%M%S"));
  }
  std::error_code error;
  fs::create_directories(path, error);
  if (error) {
    throw ConfigError("the run directory " + path.string() + " cannot be made: " + error.message(),
                      "give --run-dir a directory that can be written");
  }
  return path.string();
}

RunDirectoryLock::RunDirectoryLock(const std::string& run_dir) {
  const std::string path = (fs::path(run_dir) / "lock").string();
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file_ < 0) throw IoError({.operation = "open", .path = path, .error_number = errno});
  if (::flock(file_, LOCK_EX | LOCK_NB) == 0) return;
  ::close(file_);
  throw ConfigError("another run is writing to the run directory " + run_dir,
                    "wait for it to end, or give another --run-dir");
}

RunDirectoryLock::~RunDirectoryLock() { ::close(file_); }

void write_run_files(const std::string& run_dir, const TrainCommand& command,
                     const std::string& program_summary) {
  write_durable_file((fs::path(run_dir) / "config.toml").string(), command.effective_config);
  nlohmann::ordered_json run;
  run["schema"] = "terrace.run/1";
  run["version"] = terrace_version();
  run["started"] = time_text("%Y-%m-%dT%H:%M:%SZ");
  run["host"] = host_facts();
  run["command_line"] = command.command_line;
  run["program"] = program_summary;
  write_durable_file((fs::path(run_dir) / "run.json").string(), run.dump(2) + "\n");
}

}  // namespace terrace
