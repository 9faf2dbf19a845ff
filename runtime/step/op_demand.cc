#include "runtime/step/op_demand.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"
#include "runtime/step/coded_exchange.h"

namespace terrace {
namespace {

// The transfers whose checksums updates on the host take: reads and writes of their state, and
// writes of their parameters. This is an approximation of runtime/engine/update_checksums.h, which
// leaves some of these to the store: state with int8 moments, odd chunks of bf16 moments, and
// parameters of which a rank updates a shard and writes the whole.
class UpdateTransfers {
 public:
  explicit UpdateTransfers(const Program& program) {
    for (const Op& op : program.ops) {
      if (op.kind == OpKind::kUpdate && op.lane == Lane::kUpdate) bytes_[key_of(op)] = 0;
    }
    for (const Op& op : program.ops) {
      if (contains(op)) bytes_[key_of(op)] += op.cost.bytes;
    }
  }

  bool contains(const Op& op) const {
    const bool writes = op.lane == Lane::kWrite;
    if (!writes && op.lane != Lane::kRead) return false;
    const bool is_parameter = writes && op.account == Account::kParameters;
    return (is_parameter || op.account == Account::kOptimizerState) && bytes_.contains(key_of(op));
  }
  // Returns the bytes of an update's transfers, in both directions; 0 for other ops.
  double bytes_of(const Op& op) const {
    return op.kind == OpKind::kUpdate && op.lane == Lane::kUpdate ? bytes_.at(key_of(op)) : 0;
  }

 private:
  using Key = std::pair<std::int32_t, std::int32_t>;  // group, chunk
  static Key key_of(const Op& op) { return {op.group, op.chunk}; }

  std::map<Key, double> bytes_;
};

double rate_of(Lane lane, const MachineProfile& profile, const DriveRates& drive) {
  switch (lane) {
    case Lane::kCompute:
      return profile.compute_bytes_per_s;
    case Lane::kUpload:
      return profile.upload_bytes_per_s;
    case Lane::kDownload:
      return profile.download_bytes_per_s;
    case Lane::kRead:
      return drive.read_bytes_per_s;
    case Lane::kWrite:
      return drive.write_bytes_per_s;
    case Lane::kUpdate:
      return profile.update_bytes_per_s;
    case Lane::kCode:  // by one thread
      return profile.update_bytes_per_s / std::max(1.0, profile.update_cores);
    default:
      TERRACE_CHECK(is_between_ranks(lane));
      return link_of(profile, traits_of(lane).axis).bytes_per_s;
  }
}

double cores_of(Lane lane, const MachineProfile& profile, const DriveRates& drive) {
  switch (lane) {
    case Lane::kCompute:
      return profile.compute_cores;
    case Lane::kUpdate:
      return profile.update_cores;
    case Lane::kUpload:
    case Lane::kDownload:
      return profile.copy_cores;
    case Lane::kRead:
      return drive.read_cores;
    case Lane::kWrite:
      return drive.write_cores;
    case Lane::kCode:
      return 1;
    default:
      return is_between_ranks(lane) ? link_of(profile, traits_of(lane).axis).cores : 0;
  }
}

// Returns the share of the disk that a read or a write uses at its full speed. With this share,
// equally many bytes of both together reach disk_bytes_per_s.
double disk_share(const DriveRates& drive) {
  return 2 / (drive.disk_bytes_per_s * (1 / drive.read_bytes_per_s + 1 / drive.write_bytes_per_s));
}

// Returns OpDemand::weight. It is the same for all transfers, because the drive serves them alike,
// in both directions and whoever takes their checksums.
double weight_of(Lane lane, const MachineProfile& profile) {
  const bool is_transfer = is_of_kind(lane, LaneKind::kDrive);
  const double cores = is_transfer ? std::max(profile.drive.read_cores, profile.drive.write_cores)
                                   : cores_of(lane, profile, profile.drive);
  return cores > 0 && cores < 1 ? 1 / cores : 1;
}

// Returns the demand of an op. An op that asks for more than all of a resource is slowed from the
// start.
OpDemand demand_of(const Program& program, const Op& op, const MachineProfile& profile,
                   const UpdateTransfers& update_transfers) {
  OpDemand demand;
  const bool is_unchecked = profile.unchecked_drive && update_transfers.contains(op);
  const DriveRates& drive = is_unchecked ? *profile.unchecked_drive : profile.drive;
  const bool of_device = op.lane == Lane::kCompute || codes_on_device(program, op);
  const Lane like = of_device ? Lane::kCompute : op.lane;
  const double rate = rate_of(like, profile, drive);
  const double cores = cores_of(like, profile, drive);
  demand.share[OpDemand::kCores] = cores / profile.cores;
  demand.weight = weight_of(op.lane, profile);
  const auto measured = profile.seconds_per_work.find(class_of(program, op));
  if (measured != profile.seconds_per_work.end()) {
    demand.work_s = measured->second * work_of(program, op);
  } else {
    demand.work_s = op.cost.bytes / rate;
    if (op.lane == Lane::kCompute) demand.work_s += op.cost.flops / profile.flops_per_s;
  }
  demand.work_s += update_transfers.bytes_of(op) * profile.checksum_s_per_byte;
  if (of_device) {
    demand.delay_s = profile.op_overhead_s;
    demand.waits_for_its_threads = cores > 0;
    return demand;
  }
  if (is_between_ranks(op.lane))
    demand.delay_s = link_of(profile, traits_of(op.lane).axis).latency_s;
  const bool passes_host = !is_between_ranks(op.lane) || profile.ranks_meet_in_host_memory;
  if (demand.work_s > 0 && passes_host) {
    demand.share[OpDemand::kMemory] = op.cost.bytes / demand.work_s / profile.memory_bytes_per_s;
  }
  if (op.lane == Lane::kUpdate) demand.displacement = profile.update_displacement;
  if (op.lane == Lane::kRead) demand.share[OpDemand::kReading] = 1;
  if (op.lane == Lane::kWrite) demand.share[OpDemand::kWriting] = 1;
  if (!completes_in_order(op.lane)) {
    demand.share[OpDemand::kDisk] = disk_share(drive);
    demand.displacement = profile.transfer_displacement;
  }
  return demand;
}

}  // namespace

std::vector<OpDemand> demands_of(const Program& program, const MachineProfile& profile) {
  const UpdateTransfers update_transfers(program);
  std::vector<OpDemand> demands;
  for (const Op& op : program.ops) {
    demands.push_back(demand_of(program, op, profile, update_transfers));
  }
  return demands;
}

}  // namespace terrace
