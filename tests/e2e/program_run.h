#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/runtime/temporary_directory.h"

// Runs of the built program, or of another, as a child process, without a shell.
namespace terrace {

struct Outcome {
  int code = -1;   // exit code; -1 where a signal ended the program
  int signal = 0;  // that signal
  std::string output;
  std::string errors;
};

// Prints the outcome, so that a failed expectation shows what the program said.
std::ostream& operator<<(std::ostream& out, const Outcome& outcome);

// The things that a child is denied.
struct Denied {
  std::optional<std::uint64_t> file_bytes_above;  // writing past it fails with EFBIG
  bool write_permission_of_root = false;          // root then obeys the modes of files
  bool reader_of_output = false;                  // standard output is a pipe without a reader
};

// The exit code of a child for which something could not be denied.
constexpr int kNotStarted = 126;

// Runs take a second, and the longest one a minute under the sanitizers on a slow machine. A run
// that takes this long hangs.
constexpr auto kHangsAfter = std::chrono::seconds(240);

// A program, found as the shell finds it, and its arguments.
struct Command {
  std::vector<std::string> words;
};

// One run, from its start to its end. Its output goes to files, so it is never a terminal and never
// blocks. The destructor kills and reaps a run that is still there.
class ProgramRun {
 public:
  // `launcher` has the words of a command that starts the program. If it is empty, the program is
  // started by itself.
  explicit ProgramRun(const std::vector<std::string>& arguments, const Denied& denied = {},
                      const std::vector<std::string>& launcher = {});
  explicit ProgramRun(const Command& command, const Denied& denied = {});
  ~ProgramRun();
  ProgramRun(const ProgramRun&) = delete;
  ProgramRun& operator=(const ProgramRun&) = delete;

  // Returns the text printed so far, to standard output and to standard error.
  std::string output() const { return directory_.read("out"); }
  std::string errors() const { return directory_.read("err"); }
  // Waits until `text` was printed `times` times to standard output; false if the run ended first.
  bool wait_for(const std::string& text, int times = 1);
  // Waits until `condition` holds; false if the run ended first.
  bool wait_until(const std::function<bool()>& condition);
  bool has_ended();
  void send(int signal) const;
  // Returns whether the program, started without a launcher, has a handler for the signal by now.
  bool handles(int signal) const;
  // Kills one process that this run has started and whose command line has `word`. Returns false if
  // there is none.
  bool kill_a_descendant(const std::string& word) const;
  // Returns the files that the program, started without a launcher, has open and whose paths have
  // `word`, even if they have been unlinked. They are named by paths of /proc that open them.
  std::vector<std::string> open_files(const std::string& word) const;
  // From now on the run cannot write beyond `bytes` of any file.
  void limit_file_size(std::uint64_t bytes) const;
  // Waits for the end, with a time limit after which the run is killed and the test fails.
  Outcome wait(std::chrono::seconds limit = kHangsAfter);

 private:
  TemporaryDirectory directory_;
  pid_t child_ = -1;
  std::optional<int> status_;  // once it ended
};

// Returns whether this build has tests of MPI jobs.
bool has_mpirun();
// Returns a launcher that starts this number of processes of the program, also as root and with
// more processes than processors.
std::vector<std::string> mpirun(int ranks);

Outcome run_program(const std::vector<std::string>& arguments, const Denied& denied = {});

// Returns whether `terrace doctor` says that this check of it holds, for the directory of temporary
// files.
bool is_ok_here(const std::string& check);

}  // namespace terrace
