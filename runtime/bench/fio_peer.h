#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/bench/io_load.h"

namespace terrace {

// fio (fio.readthedocs.io) as a child process: io_uring, O_DIRECT, registered files and buffers on
// huge pages, and none of its own bookkeeping that costs time.
class FioPeer {
 public:
  struct Target {
    std::vector<std::string> files;  // written before; read and written in turn
    std::string scratch;             // a directory for what it prints
  };

  explicit FioPeer(Target target) : target_(std::move(target)) {}

  // "fio-3.33", or nothing where it is not installed.
  static std::optional<std::string> find();

  // Runs it for so long in a range of each file. Throws EnvironmentError with what it said where it
  // fails.
  IoRate run(IoMix mix, const IoShape& shape, const FileRange& range, double seconds) const;

  // What fio's document says; CPU time of its job without its start. Throws EnvironmentError.
  static IoRate read_report(const std::string& json);

 private:
  std::vector<std::string> arguments(IoMix mix, const IoShape& shape, const FileRange& range,
                                     double seconds) const;

  const Target target_;
};

}  // namespace terrace
