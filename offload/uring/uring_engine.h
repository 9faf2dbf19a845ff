#pragma once

#include <memory>

#include "base/error.h"
#include "offload/direct_file.h"
#include "offload/io_engine.h"

namespace terrace {

// The system does not let this process use io_uring.
class UringRefused : public IoError {
 public:
  using IoError::IoError;
};

// An engine on io_uring: one thread owns the ring, others hand it pieces. `file` outlives the
// engine. At most `depth` pieces are in flight. Throws UringRefused where a ring cannot be made.
std::unique_ptr<IoEngine> make_uring_engine(const DirectFile& file, int depth);

}  // namespace terrace
