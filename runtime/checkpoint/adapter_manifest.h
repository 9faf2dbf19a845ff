#pragma once

#include <string>

#include "runtime/model/adapter.h"

// The adapter of a checkpoint's model, as manifest.json has it.
namespace terrace {

std::string to_json(const AdapterOptions& adapter);
// Parses that JSON. The sizes of layers that patterns match are not in it. Throws std::exception
// for text that to_json() does not make.
AdapterOptions parse_adapter_options(const std::string& json);

}  // namespace terrace
