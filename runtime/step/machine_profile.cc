#include "runtime/step/machine_profile.h"

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "runtime/step/coded_exchange.h"

namespace terrace {
namespace {

void require(bool holds, std::string_view field, double value, std::string_view wanted) {
  if (holds) return;
  throw ConfigError(fmt::format("machine profile: {} is {}", field, value),
                    fmt::format("give {}", wanted));
}

// Ops for the gradient noise scale take the time of the op that does the same for a whole step.
OpKind timed_kind(OpKind kind) {
  if (kind == OpKind::kFirstBackward) return OpKind::kBackward;
  return kind == OpKind::kNoisePartials ? OpKind::kNormPartials : kind;
}

}  // namespace

OpClass class_of(const Program& program, const Op& op) {
  OpClass result{.kind = timed_kind(op.kind), .phase = op.phase};
  if (op.lane == Lane::kCode) result.phase = codes_on_device(program, op) ? "device" : "host";
  if (op.lane != Lane::kCompute) return result;
  if (op.unit >= 0 && !program.like_units.empty()) {
    result.like_unit = program.like_units.at(static_cast<std::size_t>(op.unit));
  }
  result.adds = op.reads_role(Role::kGradient);
  return result;
}

double work_of(const Program& program, const Op& op) {
  if (op.kind == OpKind::kBackward && op.micro_batch < 0) return program.micro_batches;
  switch (op.kind) {
    case OpKind::kAccumulate:
    case OpKind::kRoundGradient:
    case OpKind::kEncode:
    case OpKind::kDecode:
    case OpKind::kDecodeSum:
    case OpKind::kNormPartials:
    case OpKind::kNoisePartials:
    case OpKind::kKeepGradient:
    case OpKind::kUpdate:
      return op.cost.bytes;
    default:
      return op.lane == Lane::kUpdate ? op.cost.bytes : 1;
  }
}

void check_profile(const MachineProfile& profile) {
  const auto rate = [](std::string_view field, double value) {
    require(std::isfinite(value) && value > 0, field, value, "a positive number");
  };
  const auto amount = [](std::string_view field, double value) {
    require(std::isfinite(value) && value >= 0, field, value, "a number of at least 0");
  };
  rate("flops_per_s", profile.flops_per_s);
  rate("compute_bytes_per_s", profile.compute_bytes_per_s);
  amount("op_overhead_s", profile.op_overhead_s);
  rate("upload_bytes_per_s", profile.upload_bytes_per_s);
  rate("download_bytes_per_s", profile.download_bytes_per_s);
  const auto drive = [&](const std::string& name, const DriveRates& rates) {
    rate(name + ".read_bytes_per_s", rates.read_bytes_per_s);
    rate(name + ".write_bytes_per_s", rates.write_bytes_per_s);
    rate(name + ".disk_bytes_per_s", rates.disk_bytes_per_s);
    amount(name + ".read_cores", rates.read_cores);
    amount(name + ".write_cores", rates.write_cores);
  };
  drive("drive", profile.drive);
  if (profile.unchecked_drive) drive("unchecked_drive", *profile.unchecked_drive);
  amount("checksum_s_per_byte", profile.checksum_s_per_byte);
  for (const LinkRate& link : profile.links) {
    rate("links.bytes_per_s", link.bytes_per_s);
    amount("links.latency_s", link.latency_s);
    amount("links.cores", link.cores);
  }
  rate("update_bytes_per_s", profile.update_bytes_per_s);
  rate("memory_bytes_per_s", profile.memory_bytes_per_s);
  rate("cores", profile.cores);
  for (const auto& [name, displacement] :
       {std::pair("transfer_displacement", profile.transfer_displacement),
        std::pair("update_displacement", profile.update_displacement)}) {
    rate(name, displacement);
    require(displacement >= 1, name, displacement, "at least 1");
  }
  amount("compute_cores", profile.compute_cores);
  amount("update_cores", profile.update_cores);
  amount("copy_cores", profile.copy_cores);
  for (const auto& [op, seconds] : profile.seconds_per_work) amount("seconds_per_work", seconds);
  require(profile.io_depth >= 1, "io_depth", profile.io_depth, "at least 1");
}

}  // namespace terrace
