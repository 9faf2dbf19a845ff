#pragma once

#include <array>
#include <memory>
#include <vector>

#include "runtime/step/op_issuer.h"
#include "tests/sim/virtual_drive.h"
#include "tests/sim/virtual_time.h"

namespace terrace {

// The lane executor without its threads: each lane's host side is an actor that issues the next op
// of its lane some time after it can be issued.
class SimExecutor {
 public:
  struct Parts {
    VirtualTime& time;
    Device& device;
    BlockStore& store;
    const VirtualDrives& drives;
    std::size_t drive_depth;  // pieces; an op waits in front of a drive that is full
    OpBodies& bodies;
  };

  SimExecutor(const Program& program, const ExecutorMemory& memory, const Parts& parts,
              std::int64_t issue_ns);
  ~SimExecutor();
  SimExecutor(const SimExecutor&) = delete;
  SimExecutor& operator=(const SimExecutor&) = delete;

  // Like the calls of LaneExecutor; retire() throws Hang too.
  void start(Part part, const RunInput& input);
  RunReport retire();
  int runs_in_flight() const { return static_cast<int>(started_ - retired_); }

 private:
  class LaneHost;

  VirtualTime& time_;
  OpIssuer issuer_;
  std::int64_t started_ = 0;
  std::int64_t retired_ = 0;
  std::vector<std::unique_ptr<LaneHost>> hosts_;
};

}  // namespace terrace
