#pragma once

#include <string>

namespace terrace {

// Returns the block "host" of the documents that --json prints, as JSON text: what figures depend
// on, and nothing that names the machine, because results are published.
std::string host_facts_json();

}  // namespace terrace
