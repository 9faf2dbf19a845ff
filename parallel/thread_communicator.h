#pragma once

#include <memory>
#include <string>
#include <vector>

#include "parallel/communicator.h"

namespace terrace {

// The ranks of a group as threads of this process: element r is rank r's end, to be used by one
// thread at a time. A rank works directly on the memory of the others, so nothing is staged and a
// call allocates nothing; that memory is host memory. A rank has left when its communicator is
// destroyed.
//
// This is the definition of what a collective computes: the tests hold the others to it.
std::vector<std::unique_ptr<Communicator>> make_thread_communicators(
    int size, const std::string& name, const CommunicatorOptions& options = {});

}  // namespace terrace
