#include "runtime/config/device_flag.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

namespace terrace {
namespace {

constexpr auto kDevices = std::to_array<std::string_view>({"auto", "cpu", "cuda"});
constexpr std::string_view kCudaNumbered = "cuda:";
constexpr std::int64_t kOrdinalMax = 1023;

}  // namespace

DeviceChoice read_device(const FlagValue& value) {
  const std::string& text = value.name();
  if (text.starts_with(kCudaNumbered)) {
    const FlagValue number(value.where() + " cuda", {text.substr(kCudaNumbered.size())});
    return {DeviceKind::kCuda, static_cast<int>(number.integer(0, kOrdinalMax))};
  }
  return {static_cast<DeviceKind>(value.choice(kDevices)), std::nullopt};
}

std::string device_text(const DeviceChoice& device) {
  if (device.ordinal) return fmt::format("{}{}", kCudaNumbered, *device.ordinal);
  return std::string(kDevices.at(static_cast<std::size_t>(device.kind)));
}

}  // namespace terrace
