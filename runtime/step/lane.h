#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

// The queues that a step's ops wait in. One table says all that the compiler, the executor, the
// predictions and the reports know of each queue.
namespace terrace {

// A queue of ops, which start one after the other.
enum class Lane : std::uint8_t {
  kCompute,
  kUpload,       // host -> device
  kDownload,     // device -> host
  kRead,         // NVMe -> host
  kWrite,        // host -> NVMe
  kCollective,   // between data-parallel ranks; at the end of a step between all
  kIsland,       // between the data-parallel ranks of an island
  kInterIsland,  // between the data-parallel ranks with one place in their islands
  kTensor,       // between tensor-parallel ranks
  kSend,         // to the next pipeline stage; the last sends to the first
  kReceive,      // from the stage before; the first receives from the last
  kSendBack,     // the other way around
  kReceiveBack,
  kUpdate,  // optimizer and norms, on the CPU
  kCode,    // encodes and decodes the bytes that data-parallel ranks exchange
};
inline constexpr std::size_t kLaneCount = 15;

enum class LaneKind : std::uint8_t {
  kCompute,     // computes: on the compute tier, on the host beside it, or on either
  kCopy,        // between memories
  kDrive,       // between memory and drives
  kCollective,  // calls that all ranks along an axis make together
  kSend,        // messages to a neighbour along an axis
  kReceive,     // messages from a neighbour along an axis
};

// The direction of the mesh of ranks along which a lane connects ranks.
enum class MeshAxis : std::uint8_t { kNone, kData, kIsland, kInterIsland, kTensor, kPipeline };
inline constexpr std::size_t kMeshAxes = 6;

struct LaneTraits {
  std::string_view name;
  LaneKind kind = LaneKind::kCompute;
  MeshAxis axis = MeshAxis::kNone;
  int neighbour = 0;  // for messages: 1 is the next rank along the axis, -1 the one before
  // Whether an op ends before the next op of the lane starts. Otherwise ops start in order, and
  // several are in flight at a time.
  bool completes_in_order = true;
};

// One row for each lane, in the order of Lane.
inline constexpr std::array<LaneTraits, kLaneCount> kLanes = {{
    {.name = "compute", .kind = LaneKind::kCompute},
    {.name = "upload", .kind = LaneKind::kCopy},
    {.name = "download", .kind = LaneKind::kCopy},
    {.name = "read", .kind = LaneKind::kDrive, .completes_in_order = false},
    {.name = "write", .kind = LaneKind::kDrive, .completes_in_order = false},
    {.name = "collective", .kind = LaneKind::kCollective, .axis = MeshAxis::kData},
    {.name = "island", .kind = LaneKind::kCollective, .axis = MeshAxis::kIsland},
    {.name = "inter_island", .kind = LaneKind::kCollective, .axis = MeshAxis::kInterIsland},
    {.name = "tensor", .kind = LaneKind::kCollective, .axis = MeshAxis::kTensor},
    {.name = "send", .kind = LaneKind::kSend, .axis = MeshAxis::kPipeline, .neighbour = 1},
    {.name = "receive", .kind = LaneKind::kReceive, .axis = MeshAxis::kPipeline, .neighbour = -1},
    {.name = "send_back", .kind = LaneKind::kSend, .axis = MeshAxis::kPipeline, .neighbour = -1},
    {.name = "receive_back",
     .kind = LaneKind::kReceive,
     .axis = MeshAxis::kPipeline,
     .neighbour = 1},
    {.name = "update", .kind = LaneKind::kCompute},
    {.name = "code", .kind = LaneKind::kCompute},
}};

constexpr const LaneTraits& traits_of(Lane lane) {
  return kLanes.at(static_cast<std::size_t>(lane));
}

constexpr std::string_view name_of(Lane lane) { return traits_of(lane).name; }

constexpr bool is_of_kind(Lane lane, LaneKind kind) { return traits_of(lane).kind == kind; }
// Returns whether the lane's ops are messages to or from a neighbour.
constexpr bool is_message(Lane lane) {
  return is_of_kind(lane, LaneKind::kSend) || is_of_kind(lane, LaneKind::kReceive);
}
// Returns whether the lane's ops need another rank.
constexpr bool is_between_ranks(Lane lane) { return traits_of(lane).axis != MeshAxis::kNone; }
constexpr bool completes_in_order(Lane lane) { return traits_of(lane).completes_in_order; }

}  // namespace terrace
