#include "runtime/cli/memlock_check.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <string>

#include "base/bytes.h"
#include "memory/cuda/cuda_device.h"

namespace terrace {
namespace {

using enum CheckStatus;

constexpr const char* kUnregistered =
    "otherwise training runs without registration and uses more processor time";

MachineCheck check_counted_memlock(const std::string& limit, const HostLimits& limits) {
  if (limits.memlock_limit_bytes >= limits.usable_bytes()) {
    return {"memlock", kOk, limit + ": all usable memory can be registered with io_uring", ""};
  }
  return {"memlock", kWarn,
          fmt::format("all runs of this user together can register {} with io_uring; a larger "
                      "--host-memory is used unregistered",
                      limit),
          fmt::format("use ulimit -l unlimited or CAP_IPC_LOCK to register all of it; {}",
                      kUnregistered)};
}

MachineCheck check_registration(const UringFacts& uring, const HostLimits& limits) {
  const std::size_t bytes = limits.memlock_limit_bytes;
  const bool unlimited = bytes >= std::numeric_limits<std::size_t>::max() / 2;
  const std::string limit = unlimited ? "unlimited" : format_size(bytes);
  if (uring.register_error != 0) {
    return {"memlock", kWarn,
            fmt::format("{}, but no memory can be registered with io_uring now: {}", limit,
                        std::strerror(uring.register_error)),
            fmt::format("use ulimit -l unlimited if the limit is used up, else Linux 5.19; {}",
                        kUnregistered)};
  }
  if (unlimited) return {"memlock", kOk, limit, ""};
  if (uring.counts_locked_memory) return check_counted_memlock(limit, limits);
  return {"memlock", kOk,
          limit +
              ", but io_uring does not count towards it here (CAP_IPC_LOCK): all memory can be "
              "registered",
          ""};
}

}  // namespace

MachineCheck check_memlock(const UringFacts& uring, const HostLimits& limits) {
  MachineCheck check = check_registration(uring, limits);
  // The driver pins that memory itself.
  if (is_cuda_built()) check.value += "; memory that is page-locked for a GPU is not counted";
  return check;
}

}  // namespace terrace
