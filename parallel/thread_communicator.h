#pragma once

#include <memory>
#include <string>
#include <vector>

#include "parallel/communicator.h"

namespace terrace {

// Makes the ranks of a group as threads of this process: element r is rank r's end, to be used by
// one thread at a time. A rank works directly on the memory of the others, which is host memory, so
// nothing is staged and a call allocates nothing. A rank has left when its communicator is
// destroyed.
//
// This implementation defines the result of each collective: the tests compare the others with it.
std::vector<std::unique_ptr<Communicator>> make_thread_communicators(
    int size, const std::string& name, const CommunicatorOptions& options = {});

}  // namespace terrace
