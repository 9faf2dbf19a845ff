#include "runtime/step/machine_profile.h"

#include <fmt/format.h>

#include <cmath>
#include <string_view>

#include "base/error.h"

namespace terrace {
namespace {

void require(bool holds, std::string_view field, double value, std::string_view wanted) {
  if (holds) return;
  throw ConfigError(fmt::format("machine profile: {} is {}", field, value),
                    fmt::format("give {}", wanted));
}

}  // namespace

void check_profile(const MachineProfile& profile) {
  const auto rate = [](std::string_view field, double value) {
    require(std::isfinite(value) && value > 0, field, value, "a positive number");
  };
  const auto amount = [](std::string_view field, double value) {
    require(std::isfinite(value) && value >= 0, field, value, "a number that is not negative");
  };
  rate("flops_per_s", profile.flops_per_s);
  rate("compute_bytes_per_s", profile.compute_bytes_per_s);
  amount("op_overhead_s", profile.op_overhead_s);
  rate("upload_bytes_per_s", profile.upload_bytes_per_s);
  rate("download_bytes_per_s", profile.download_bytes_per_s);
  rate("read_bytes_per_s", profile.read_bytes_per_s);
  rate("write_bytes_per_s", profile.write_bytes_per_s);
  rate("network_bytes_per_s", profile.network_bytes_per_s);
  rate("update_bytes_per_s", profile.update_bytes_per_s);
  rate("disk_bytes_per_s", profile.disk_bytes_per_s);
  rate("memory_bytes_per_s", profile.memory_bytes_per_s);
  rate("cores", profile.cores);
  amount("compute_cores", profile.compute_cores);
  amount("update_cores", profile.update_cores);
  require(profile.io_depth >= 1, "io_depth", profile.io_depth, "1 or more");
}

}  // namespace terrace
