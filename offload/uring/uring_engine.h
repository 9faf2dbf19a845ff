#pragma once

#include <memory>
#include <vector>

#include "base/error.h"
#include "offload/direct_file.h"
#include "offload/io_engine.h"

namespace terrace {

// Thrown where the system does not let this process use io_uring.
class UringRefused : public IoError {
 public:
  using IoError::IoError;
};

// Makes an engine on io_uring: one thread owns the ring, and other threads hand it pieces. `files`,
// one or more, outlive the engine. Throws UringRefused where a ring cannot be made.
std::unique_ptr<IoEngine> make_uring_engine(std::vector<const DirectFile*> files,
                                            const InFlight& in_flight);

}  // namespace terrace
