#pragma once

#include <csignal>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "bench/deadline.h"

namespace terrace {

// Ends the program before it is done. On SIGINT, SIGTERM or SIGHUP it exits with 128 + N. Work that
// does not check the deadline itself is ended some time after it, with the exit code that the last
// words return. A signal that was ignored when the program began stays ignored.
class EarlyEnd {
 public:
  struct Options {
    Deadline deadline = {};
    double grace_s = 1;  // for work that does not check the deadline
    // Prints the results so far, on a thread of its own. `signal`: the signal's number, or 0.
    // Returns the exit code for the case that no signal ends the program.
    std::function<int(int signal)> last_words;
    // Directories in which this process may just be making a file of its own, whose name is removed
    // at once. The end waits for that removal, so that no file is left.
    std::vector<std::string> directories;
  };

  // Blocks the signals, also for threads made from now on: construct this object before them.
  explicit EarlyEnd(Options options);
  // Stops watching, and lets signals end the program in their default way again. Does not return if
  // the program is already ending.
  ~EarlyEnd();
  EarlyEnd(const EarlyEnd&) = delete;
  EarlyEnd& operator=(const EarlyEnd&) = delete;

 private:
  void watch();
  [[noreturn]] void end(int signal);
  void wait_for_nameless_files() const;

  const Options options_;
  sigset_t mask_before_ = {};
  int signals_ = -1;  // descriptors
  int stop_ = -1;
  std::thread watcher_;
};

}  // namespace terrace
