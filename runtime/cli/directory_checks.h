#pragma once

#include <span>
#include <vector>

#include "offload/nvme_store.h"
#include "runtime/cli/machine_checks.h"

namespace terrace {

// What the directories of drives are: whether files can be made there, what they lie on, and what
// is free. Each is tried out with a small file that is removed. One that cannot be used fails where
// `asked_for`, and is only warned of where it is what is looked at by default. Nothing is measured.
std::vector<MachineCheck> check_directories(std::span<const NvmeDirectory> directories,
                                            bool asked_for);

}  // namespace terrace
