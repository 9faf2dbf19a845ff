#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/child_program.h"
#include "bench/io_load.h"

namespace terrace {

// fio (fio.readthedocs.io) as a child process: io_uring, O_DIRECT, registered files and buffers on
// huge pages, and none of its own bookkeeping that costs time. It is given open files, which need
// no names: whatever ends us, fio ends too, and nothing of what it measured is left.
class FioPeer {
 public:
  struct Target {
    // Descriptors of files of ours that were written before; read and written in turn.
    std::vector<int> files;
    IoWay way = IoWay::kRegistered;  // threads: fio has libaio there, with as many in flight
    bool direct = true;              // O_DIRECT
  };

  explicit FioPeer(Target target) : target_(std::move(target)) {}

  // "fio-3.33", or nothing where it is not installed.
  static std::optional<std::string> find();

  // Runs it for so long in a range of each file. Throws EnvironmentError with what it said where it
  // fails.
  IoRate run(IoMix mix, const IoShape& shape, const FileRange& range, double seconds) const;

  // Of a run that has ended; CPU time of its job without its start. Throws EnvironmentError.
  static IoRate read_report(const ChildOutcome& outcome);

 private:
  std::vector<std::string> arguments(IoMix mix, const IoShape& shape, const FileRange& range,
                                     double seconds) const;

  const Target target_;
};

}  // namespace terrace
