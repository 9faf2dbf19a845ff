#pragma once

#include <csignal>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "bench/deadline.h"

namespace terrace {

// Ends the program before it is done: with 128 + N on SIGINT, SIGTERM or SIGHUP, and with what the
// last words return a second after the end of its time, for what does not look at its time itself.
// A signal that was ignored when the program began stays ignored.
class EarlyEnd {
 public:
  struct Options {
    Deadline deadline = {};
    // Prints what there is to print, on a thread of its own; the signal's number, or 0. Returns the
    // exit code where no signal ends the program.
    std::function<int(int signal)> last_words;
    // Where this process may be making a file of its own, which loses its name at once: waits for
    // that, so that nothing is left.
    std::vector<std::string> directories;
  };

  // Blocks the signals, also for threads that are made from now on: make it before them.
  explicit EarlyEnd(Options options);
  // Watches no more, and lets signals end the program as they do by themselves. Does not return
  // where the program is already ending.
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
