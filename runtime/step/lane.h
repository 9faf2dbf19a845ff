#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

// The queues that a step's ops wait in: one table says all that the compiler, the executor, the
// predictions and the reports know of each.
namespace terrace {

// A queue of ops, of which one after the other starts.
enum class Lane : std::uint8_t {
  kCompute,
  kUpload,      // host -> device
  kDownload,    // device -> host
  kRead,        // NVMe -> host
  kWrite,       // host -> NVMe
  kCollective,  // between data-parallel ranks, and all at the end of a step
  kTensor,      // between tensor-parallel ranks
  kSend,        // to the next pipeline stage, from the last to the first
  kReceive,     // from the stage before, the first from the last
  kSendBack,    // the other way around
  kReceiveBack,
  kUpdate,  // optimizer and norms, on the CPU
};
inline constexpr std::size_t kLaneCount = 12;

enum class LaneKind : std::uint8_t {
  kCompute,     // computes: on the compute tier, or on the host beside it
  kCopy,        // between memories
  kDrive,       // between memory and drives
  kCollective,  // calls of all ranks along an axis
  kSend,        // messages to a neighbour along an axis
  kReceive,     // messages from one
};

// Along which direction of the mesh of ranks a lane connects.
enum class MeshAxis : std::uint8_t { kNone, kData, kTensor, kPipeline };

struct LaneTraits {
  std::string_view name;
  LaneKind kind = LaneKind::kCompute;
  MeshAxis axis = MeshAxis::kNone;
  int neighbour = 0;  // of messages: 1 is the next rank along the axis, -1 the one before
  // Whether the end of an op happens before the start of the next of the lane. Otherwise ops start
  // in order, and several are in flight.
  bool completes_in_order = true;
};

// In the order of Lane.
inline constexpr std::array<LaneTraits, kLaneCount> kLanes = {{
    {.name = "compute", .kind = LaneKind::kCompute},
    {.name = "upload", .kind = LaneKind::kCopy},
    {.name = "download", .kind = LaneKind::kCopy},
    {.name = "read", .kind = LaneKind::kDrive, .completes_in_order = false},
    {.name = "write", .kind = LaneKind::kDrive, .completes_in_order = false},
    {.name = "collective", .kind = LaneKind::kCollective, .axis = MeshAxis::kData},
    {.name = "tensor", .kind = LaneKind::kCollective, .axis = MeshAxis::kTensor},
    {.name = "send", .kind = LaneKind::kSend, .axis = MeshAxis::kPipeline, .neighbour = 1},
    {.name = "receive", .kind = LaneKind::kReceive, .axis = MeshAxis::kPipeline, .neighbour = -1},
    {.name = "send_back", .kind = LaneKind::kSend, .axis = MeshAxis::kPipeline, .neighbour = -1},
    {.name = "receive_back",
     .kind = LaneKind::kReceive,
     .axis = MeshAxis::kPipeline,
     .neighbour = 1},
    {.name = "update", .kind = LaneKind::kCompute},
}};

constexpr const LaneTraits& traits_of(Lane lane) {
  return kLanes.at(static_cast<std::size_t>(lane));
}

constexpr std::string_view name_of(Lane lane) { return traits_of(lane).name; }

constexpr bool is_of_kind(Lane lane, LaneKind kind) { return traits_of(lane).kind == kind; }
// Whether its ops are messages to or from a neighbour.
constexpr bool is_message(Lane lane) {
  return is_of_kind(lane, LaneKind::kSend) || is_of_kind(lane, LaneKind::kReceive);
}
// Whether its ops need another rank.
constexpr bool is_between_ranks(Lane lane) { return traits_of(lane).axis != MeshAxis::kNone; }
constexpr bool completes_in_order(Lane lane) { return traits_of(lane).completes_in_order; }

}  // namespace terrace
