#pragma once

#include <memory>
#include <string>

#include "parallel/communicator.h"

namespace terrace {

// A group of one rank: no other to wait for. It can be aborted as any other.
std::unique_ptr<Communicator> make_self_communicator(const std::string& name);

}  // namespace terrace
