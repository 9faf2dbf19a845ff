#include "runtime/bench/drive_check.h"

#include "base/bytes.h"
#include "offload/job_directory.h"
#include "offload/space_check.h"

namespace terrace {

std::vector<std::string> bench_directories(const BenchOptions& options) {
  return options.nvme.empty() ? std::vector<std::string>{"."} : options.nvme;
}

void check_drives(const BenchOptions& options, std::uint64_t total_bytes, Log& log) {
  const std::vector<std::string> directories = bench_directories(options);
  std::vector<SpaceNeed> needs;
  for (const std::string& directory : directories) {
    // What only making it can tell. Space that the dead have left is then free.
    const JobDirectory tried(directory, log);
    needs.push_back({.directory = directory,
                     .need_bytes = divide_up(total_bytes, std::uint64_t{directories.size()}),
                     .budget_bytes = {}});
  }
  check_space(needs);
}

}  // namespace terrace
