#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/child_program.h"
#include "bench/io_load.h"

namespace terrace {

// fio (fio.readthedocs.io) as a child process: with io_uring, O_DIRECT, registered files and
// buffers on huge pages, and without its own bookkeeping that costs time. It is given open files,
// which need no names. Whatever ends us ends fio too, and no file that it measured is left.
class FioPeer {
 public:
  struct Target {
    // Descriptors of our files, which were written before. fio reads and writes them in turn.
    std::vector<int> files;
    IoWay way = IoWay::kRegistered;  // kThreads: fio uses libaio, with the same number in flight
    bool direct = true;              // O_DIRECT
  };

  explicit FioPeer(Target target) : target_(std::move(target)) {}

  // Returns "fio-3.33", or nothing if fio is not installed.
  static std::optional<std::string> find();

  // Runs fio for `seconds` in a range of each file. Throws EnvironmentError with fio's output if it
  // fails.
  IoRate run(IoMix mix, const IoShape& shape, const FileRange& range, double seconds) const;

  // Reads the rate from the output of a run that has ended. The CPU time is of its job, without its
  // start. Throws EnvironmentError.
  static IoRate read_report(const ChildOutcome& outcome);

 private:
  std::vector<std::string> arguments(IoMix mix, const IoShape& shape, const FileRange& range,
                                     double seconds) const;

  const Target target_;
};

}  // namespace terrace
