#pragma once

#include <string>

namespace terrace {

// Returns the block "host" of run.json and of the documents that --json prints, as JSON text: what
// figures depend on, and nothing that names the machine, because results are published. What cannot
// be looked at is left out, and "remark" says why.
std::string host_facts_json();

}  // namespace terrace
