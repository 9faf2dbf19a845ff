#pragma once

#include <memory>
#include <string>

#include "parallel/communicator.h"

namespace terrace {

// Makes a group of one rank, which has no other rank to wait for. It can be aborted like any other.
std::unique_ptr<Communicator> make_self_communicator(const std::string& name);

}  // namespace terrace
