#pragma once

#include <string>

#include "memory/ledger.h"

namespace terrace {

// JSON: of the host and of NVMe the budget, the peak and the accounts that are charged.
std::string ledger_text(const Ledger& ledger);

}  // namespace terrace
