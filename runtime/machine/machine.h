#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

// A kind of machine, in numbers: what a plan needs to know of a node that is not at hand, and how
// each number is known. docs/plan.md describes the files.
namespace terrace {

// A figure that is needed is not known.
class UnknownFigure : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

// A number that is known of a machine, and the document that states it.
struct Figure {
  double value = 0;
  std::string source;  // empty: this program has measured it, or a user has written it
  std::string date;    // of the source: YYYY or YYYY-MM; may be empty

  friend bool operator==(const Figure&, const Figure&) = default;
};

// The numbers. A node is one machine; a device is an accelerator of it. Rates of links and drives
// are those of one direction alone.
enum class MachineFigure : std::uint8_t {
  kDeviceMemoryBytes,
  kDeviceMemoryBytesPerS,
  kBf16FlopsPerS,  // peak, dense: of a device, or of the node's processors where it has no devices
  kFp16FlopsPerS,
  kFp32FlopsPerS,
  kProductShare,  // of the peak, that large products reach
  kUploadBytesPerS,
  kDownloadBytesPerS,
  kNodeLinkBytesPerS,  // between a device and the others of its node
  kNodeLinkLatencyS,
  kNetworkBytesPerS,  // of the whole node
  kNetworkLatencyS,
  kCores,
  kHostMemoryBytes,
  kHostMemoryBytesPerS,
  kUpdateBytesPerS,  // of optimizer steps on all processors: bytes read and written
  kDriveBytes,
  kDriveReadBytesPerS,
  kDriveWriteBytesPerS,
  kNodeWatts,
  kPricePerNodeHour,  // in any currency
  kLinkShare,         // of their peak, that links and device memory reach
};
inline constexpr std::size_t kMachineFigures = 22;

struct MachineFigureTraits {
  std::string_view key;  // in files
  double largest = 1e30;
  double smallest = 0;  // itself not possible
};

inline constexpr double kMachineBytesMost = 1e18;  // of a memory or the drives of a node
inline constexpr double kRateLeast = 1;            // bytes or FLOPs a second
inline constexpr double kLeastDeviceSpeed = 1e-3;

// One row for each figure, in the order of MachineFigure.
inline constexpr std::array<MachineFigureTraits, kMachineFigures> kMachineFigureTraits = {{
    {.key = "device_memory_bytes", .largest = kMachineBytesMost},
    {.key = "device_memory_bytes_per_s", .smallest = kRateLeast},
    {.key = "bf16_flops_per_s", .smallest = kRateLeast},
    {.key = "fp16_flops_per_s", .smallest = kRateLeast},
    {.key = "fp32_flops_per_s", .smallest = kRateLeast},
    {.key = "product_share", .largest = 1},
    {.key = "upload_bytes_per_s", .smallest = kRateLeast},
    {.key = "download_bytes_per_s", .smallest = kRateLeast},
    {.key = "node_link_bytes_per_s", .smallest = kRateLeast},
    {.key = "node_link_latency_s", .largest = 1e3},
    {.key = "network_bytes_per_s", .smallest = kRateLeast},
    {.key = "network_latency_s", .largest = 1e3},
    {.key = "cores", .largest = 1e6},
    {.key = "host_memory_bytes", .largest = kMachineBytesMost},
    {.key = "host_memory_bytes_per_s", .smallest = kRateLeast},
    {.key = "update_bytes_per_s", .smallest = kRateLeast},
    {.key = "drive_bytes", .largest = kMachineBytesMost},
    {.key = "drive_read_bytes_per_s", .smallest = kRateLeast},
    {.key = "drive_write_bytes_per_s", .smallest = kRateLeast},
    {"node_watts"},
    {"price_per_node_hour"},
    {.key = "link_share", .largest = 1},
}};

constexpr std::string_view key_of(MachineFigure figure) {
  return kMachineFigureTraits.at(static_cast<std::size_t>(figure)).key;
}

// A matrix product of `flops` FLOPs runs at `share` of the rate that large products reach.
struct ProductSpeed {
  double flops = 0;
  double share = 0;

  friend bool operator==(const ProductSpeed&, const ProductSpeed&) = default;
};

struct Machine {
  std::string name;
  std::string about;
  std::int32_t devices = 0;  // of a node; 0: its processors compute
  // The speed of each device of a node, from kLeastDeviceSpeed to 1, as a share of the figures for
  // products and for the rate of device memory. Empty: all devices have the speed 1.
  std::vector<double> device_speeds = {};
  std::array<std::optional<Figure>, kMachineFigures> figures = {};
  // By ascending FLOPs; empty where it is not known: all products then run at one rate.
  std::vector<ProductSpeed> product_curve;

  const std::optional<Figure>& at(MachineFigure figure) const {
    return figures.at(static_cast<std::size_t>(figure));
  }
  std::optional<Figure>& at(MachineFigure figure) {
    return figures.at(static_cast<std::size_t>(figure));
  }
  bool knows(MachineFigure figure) const { return at(figure).has_value(); }
  // Returns a figure. Throws UnknownFigure, which names it and the machine, where it is not known.
  double value(MachineFigure figure) const;
  double value_or(MachineFigure figure, double otherwise) const {
    return knows(figure) ? at(figure)->value : otherwise;
  }
  friend bool operator==(const Machine&, const Machine&) = default;
};

}  // namespace terrace
