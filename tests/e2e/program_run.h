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

// So that a failed expectation shows what the program said.
std::ostream& operator<<(std::ostream& out, const Outcome& outcome);

// What the child is denied.
struct Denied {
  std::optional<std::uint64_t> file_bytes_above;  // writing past it fails with EFBIG
  bool write_permission_of_root = false;          // root then obeys the modes of files
  bool reader_of_output = false;                  // standard output is a pipe that nobody reads
};

// The exit code of a child that could not be denied what it should be.
constexpr int kNotStarted = 126;

// Runs take a second, and the longest a minute under the sanitizers on a slow machine; a run that
// takes this long hangs.
constexpr auto kHangsAfter = std::chrono::seconds(240);

// A program, found as the shell finds it, and its arguments.
struct Command {
  std::vector<std::string> words;
};

// One run, from its start to its end. Its output goes to files, so it is never a terminal and never
// blocks. The destructor kills and reaps a run that is still there.
class ProgramRun {
 public:
  // `launcher`: words of a command that starts the program; empty: it is started by itself.
  explicit ProgramRun(const std::vector<std::string>& arguments, const Denied& denied = {},
                      const std::vector<std::string>& launcher = {});
  explicit ProgramRun(const Command& command, const Denied& denied = {});
  ~ProgramRun();
  ProgramRun(const ProgramRun&) = delete;
  ProgramRun& operator=(const ProgramRun&) = delete;

  // What was printed so far, to standard output and to standard error.
  std::string output() const { return directory_.read("out"); }
  std::string errors() const { return directory_.read("err"); }
  // Waits until `text` was printed `times` times to standard output; false if the run ended first.
  bool wait_for(const std::string& text, int times = 1);
  // Waits until `condition` holds; false if the run ended first.
  bool wait_until(const std::function<bool()>& condition);
  bool has_ended();
  void send(int signal) const;
  // Whether the program, started without a launcher, has a handler for it by now.
  bool handles(int signal) const;
  // Kills one process that this run has started, whose command line has `word`; false if there is
  // none.
  bool kill_a_descendant(const std::string& word) const;
  // Files that the program, started without a launcher, has open and whose paths have `word`,
  // though they may have been unlinked: paths of /proc that open them.
  std::vector<std::string> open_files(const std::string& word) const;
  // From now on the run cannot write behind so many bytes of any file.
  void limit_file_size(std::uint64_t bytes) const;
  // Waits for the end, with a time limit after which the run is killed and the test fails.
  Outcome wait(std::chrono::seconds limit = kHangsAfter);

 private:
  TemporaryDirectory directory_;
  pid_t child_ = -1;
  std::optional<int> status_;  // once it ended
};

// Whether this build has tests of MPI jobs.
bool has_mpirun();
// A launcher that starts so many processes of the program, also as root and with more of them than
// processors.
std::vector<std::string> mpirun(int ranks);

Outcome run_program(const std::vector<std::string>& arguments, const Denied& denied = {});

// Whether `terrace doctor` says that this check of it holds, for the directory of temporary files.
bool is_ok_here(const std::string& check);

}  // namespace terrace
