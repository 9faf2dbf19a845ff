#include "runtime/machine/rank_profile.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/error.h"

namespace terrace {
namespace {

using enum MachineFigure;

double link_share(const Machine& machine) {
  constexpr double kUsualLinkShare = 0.85;
  return machine.value_or(kLinkShare, kUsualLinkShare);
}

// The share of the host's memory rate that optimizer updates reach. They read and write state once.
constexpr double kUsualUpdateShare = 0.6;

// On processors, products in bf16 are at least as fast as in fp32, whose rate stands for theirs
// where only that is known. A device without a rate in bf16 may not have bf16 at all.
MachineFigure flops_figure(const Machine& machine, DType type) {
  if (type == DType::kF16) return kFp16FlopsPerS;
  const bool has_bf16 = type == DType::kBF16 && machine.knows(kBf16FlopsPerS);
  const bool takes_fp32 = machine.devices == 0 && machine.knows(kFp32FlopsPerS);
  return has_bf16 || (type == DType::kBF16 && !takes_fp32) ? kBf16FlopsPerS : kFp32FlopsPerS;
}

// The ranks of one group along an axis: how many there are, and how many of them share a node.
struct AxisGroup {
  std::int32_t ranks = 1;
  std::int32_t on_node = 1;
};

// Returns the groups of ranks that are `stride` apart. Where nodes and groups do not divide each
// other, some groups lie on more nodes than others; these count.
AxisGroup group_of(std::int32_t ranks, std::int32_t stride, std::int32_t ranks_on_node) {
  return {ranks, std::gcd(std::max(1, ranks_on_node / stride), ranks)};
}

AxisGroup group_of(MeshAxis axis, const RankSetting& setting) {
  const MeshShape& mesh = setting.mesh;
  switch (axis) {
    case MeshAxis::kTensor:
      return group_of(mesh.tensor, 1, setting.ranks_on_node);
    case MeshAxis::kData:
      return group_of(mesh.data, mesh.tensor, setting.ranks_on_node);
    case MeshAxis::kIsland:
      return group_of(mesh.island_ranks(), mesh.tensor, setting.ranks_on_node);
    case MeshAxis::kInterIsland:
      return group_of(mesh.islands, mesh.tensor * mesh.island_ranks(), setting.ranks_on_node);
    default:
      return group_of(mesh.pipeline, mesh.tensor * mesh.data, setting.ranks_on_node);
  }
}

bool crosses_nodes(const AxisGroup& group) { return group.on_node < group.ranks; }

// Returns the rate between the ranks of a node. Without devices they copy in the node's memory: a
// copied byte is read and written.
double node_rate(const Machine& machine, const RankSetting& setting) {
  if (machine.devices > 0) return machine.value_or(kNodeLinkBytesPerS, 1) * link_share(machine);
  return machine.value_or(kHostMemoryBytesPerS, 1) / 2 / setting.ranks_on_node;
}

// A ring along the axis passes the node's network once for the ranks that share it; rings of other
// groups pass it too. Messages between neighbours share it among all ranks of the node.
LinkRate link_for(MeshAxis axis, const Machine& machine, const RankSetting& setting) {
  const AxisGroup group = group_of(axis, setting);
  const double within = node_rate(machine, setting);
  const bool is_ring = axis != MeshAxis::kPipeline;
  const double hops = is_ring ? std::max(1, group.ranks - 1) : 1;
  if (!crosses_nodes(group)) return {within, hops * machine.value_or(kNodeLinkLatencyS, 0)};
  const double share = static_cast<double>(is_ring ? group.on_node : 1) / setting.ranks_on_node;
  const double across = machine.value_or(kNetworkBytesPerS, 1) * link_share(machine) * share;
  // A byte passes each of the ring's hops but one, and of these one between any two nodes (NCCL,
  // src/graph/tuning.cc, counts the steps of a ring in the same way).
  const int nodes = (group.ranks + group.on_node - 1) / group.on_node;
  const double hops_across = is_ring ? nodes - 1 : 1;
  const double latency_s =
      hops_across * machine.value_or(kNetworkLatencyS, 0) +
      std::max(0.0, hops - hops_across) * machine.value_or(kNodeLinkLatencyS, 0);
  return {group.on_node > 1 ? std::min(within, across) : across, latency_s};
}

void set_host(const Machine& machine, const RankSetting& setting, MachineProfile& profile) {
  const double ranks = setting.ranks_on_node;
  profile.memory_bytes_per_s = machine.value_or(kHostMemoryBytesPerS, 20e9 * ranks) / ranks;
  profile.cores = std::max(1.0, machine.value_or(kCores, ranks) / ranks);
  const double memory = machine.value_or(kHostMemoryBytesPerS, 1);
  profile.update_bytes_per_s =
      machine.value_or(kUpdateBytesPerS, memory * kUsualUpdateShare) / ranks;
  profile.drive.read_bytes_per_s = machine.value_or(kDriveReadBytesPerS, 1) / ranks;
  profile.drive.write_bytes_per_s = machine.value_or(kDriveWriteBytesPerS, 1) / ranks;
  profile.drive.disk_bytes_per_s =
      std::max(profile.drive.read_bytes_per_s, profile.drive.write_bytes_per_s);
}

}  // namespace

double peak_flops_per_s(const Machine& machine, const RankSetting& setting) {
  const double peak = machine.value(flops_figure(machine, setting.compute_type));
  return machine.devices > 0 ? peak : peak / setting.ranks_on_node;
}

MachineProfile rank_profile(const Machine& machine, const RankSetting& setting) {
  MachineProfile profile;
  profile.flops_per_s =
      peak_flops_per_s(machine, setting) * machine.value_or(kProductShare, kUsualProductShare);
  set_host(machine, setting, profile);
  if (machine.devices > 0) {
    profile.op_overhead_s = kDeviceOverheadS;
    profile.ranks_meet_in_host_memory = false;
    profile.compute_cores = 0;
    profile.update_cores = profile.cores;
    profile.compute_bytes_per_s = machine.value_or(kDeviceMemoryBytesPerS, 1) * link_share(machine);
    profile.upload_bytes_per_s = machine.value_or(kUploadBytesPerS, 1) * link_share(machine);
    profile.download_bytes_per_s = machine.value_or(kDownloadBytesPerS, 1) * link_share(machine);
  } else {
    profile.compute_cores = profile.cores;
    profile.update_cores = std::max(1.0, profile.cores / 2);
    profile.compute_bytes_per_s = profile.memory_bytes_per_s;
    profile.upload_bytes_per_s = profile.download_bytes_per_s = profile.memory_bytes_per_s / 2;
  }
  for (const MeshAxis axis : {MeshAxis::kData, MeshAxis::kIsland, MeshAxis::kInterIsland,
                              MeshAxis::kTensor, MeshAxis::kPipeline}) {
    link_of(profile, axis) = link_for(axis, machine, setting);
  }
  check_profile(profile);
  return profile;
}

void check_known(const Machine& machine, const RankSetting& setting, const Program& program) {
  const auto need = [&](MachineFigure figure) { static_cast<void>(machine.value(figure)); };
  for (std::size_t l = 0; l < kLaneCount; ++l) {
    const auto lane = static_cast<Lane>(l);
    if (lane_bytes(program, lane) == 0) continue;
    if (lane == Lane::kCompute && machine.devices > 0) need(kDeviceMemoryBytesPerS);
    if (lane == Lane::kUpload && machine.devices > 0) need(kUploadBytesPerS);
    if (lane == Lane::kDownload && machine.devices > 0) need(kDownloadBytesPerS);
    if (lane == Lane::kRead) need(kDriveReadBytesPerS);
    if (lane == Lane::kWrite) need(kDriveWriteBytesPerS);
    const bool may_be_of_host = lane == Lane::kUpdate || lane == Lane::kCode;
    if (may_be_of_host && !machine.knows(kUpdateBytesPerS)) need(kHostMemoryBytesPerS);
    if (!is_between_ranks(lane)) continue;
    const AxisGroup group = group_of(traits_of(lane).axis, setting);
    if (crosses_nodes(group)) need(kNetworkBytesPerS);
    if (group.on_node > 1) need(machine.devices > 0 ? kNodeLinkBytesPerS : kHostMemoryBytesPerS);
  }
}

}  // namespace terrace
