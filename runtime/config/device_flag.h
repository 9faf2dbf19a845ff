#pragma once

#include <string>

#include "runtime/config/flag_value.h"
#include "runtime/config/train_options.h"

// The value of --device: auto, cpu, cuda or cuda:N.
namespace terrace {

// Throws ConfigError.
DeviceChoice read_device(const FlagValue& value);
// As it is written.
std::string device_text(const DeviceChoice& device);

}  // namespace terrace
