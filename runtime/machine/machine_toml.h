#pragma once

#include <string>

#include "runtime/machine/machine.h"

// Machines as TOML files: `name`, `about`, `devices`, `device_speeds` where devices are not equally
// fast, `product_curve` where the rate of products was measured by their size, and a key for each
// figure. A figure is a number, a table {value, source, date}, or the text "not known".
namespace terrace {

// Reads a machine from a text. Throws ConfigError, which names `origin` and the key, for a key that
// is unknown (with the nearest one), missing or impossible.
Machine parse_machine(const std::string& text, const std::string& origin);
// Returns the text of a file that reads back to the same machine.
std::string to_toml(const Machine& machine);

}  // namespace terrace
