#pragma once

#include <string>

#include "runtime/config/flag_value.h"
#include "runtime/config/train_options.h"

// The value of --device: auto, cpu, cuda or cuda:N.
namespace terrace {

// Returns the device that a value names. Throws ConfigError.
DeviceChoice read_device(const FlagValue& value);
// Returns the text of a device as a user writes it.
std::string device_text(const DeviceChoice& device);

}  // namespace terrace
