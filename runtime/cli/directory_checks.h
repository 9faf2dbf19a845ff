#pragma once

#include <span>
#include <vector>

#include "offload/nvme_store.h"
#include "runtime/cli/machine_checks.h"

namespace terrace {

// Checks the directories of drives: whether files can be made there, which file system and drive
// they lie on, and how much space is free. Each directory is tried with a small file that is
// removed. A directory that cannot be used is a failure if it was `asked_for`, and only a warning
// if it is the default. Measures nothing.
std::vector<MachineCheck> check_directories(std::span<const NvmeDirectory> directories,
                                            bool asked_for);

}  // namespace terrace
