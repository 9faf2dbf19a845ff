#pragma once

#include <string>

namespace terrace {

// Returns the block "host" of run.json and of the documents that --json prints, as JSON text. It
// has the facts that measurements depend on, and nothing that names the machine, because results
// are published. A fact that cannot be read is left out, and "remark" says why.
std::string host_facts_json();

}  // namespace terrace
