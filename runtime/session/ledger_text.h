#pragma once

#include <string>

#include "memory/ledger.h"

namespace terrace {

// Returns JSON with the budget, the peak and the charged accounts of the host and of NVMe.
std::string ledger_text(const Ledger& ledger);

}  // namespace terrace
