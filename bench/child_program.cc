#include "bench/child_program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/error.h"

namespace terrace {
namespace {

constexpr int kNotRun = 127;

// The output of a child. It is a file in memory, so no name is left behind and no reader is needed.
class SaidByChild {
 public:
  SaidByChild() : descriptor_(::memfd_create("terrace-child", MFD_CLOEXEC)) {
    if (descriptor_ < 0) {
      throw EnvironmentError(fmt::format("memfd_create failed: {}", std::strerror(errno)),
                             "raise the limit on open files (ulimit -n)");
    }
  }
  ~SaidByChild() { ::close(descriptor_); }
  SaidByChild(const SaidByChild&) = delete;
  SaidByChild& operator=(const SaidByChild&) = delete;

  int descriptor() const { return descriptor_; }
  std::string text() const {
    std::string text;
    std::array<char, 4096> piece{};
    ssize_t size = 0;
    while ((size = ::pread(descriptor_, piece.data(), piece.size(),
                           static_cast<off_t>(text.size()))) > 0) {
      text.append(piece.data(), static_cast<std::size_t>(size));
    }
    return text;
  }

 private:
  const int descriptor_;
};

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Everything that the child needs, made before the child exists.
struct Prepared {
  pid_t parent = 0;
  const std::vector<int>& files;
  int output = -1;
  const std::vector<char*>& command;
  const std::vector<char*>& variables;
};

// Turns the child into the program. The child has the parent's memory until then, so it makes
// system calls only. It asks for a signal at the parent's end, since nobody would end it, or wait
// for it, when we are gone. If the parent ended before the child asked, the child has another
// parent.
[[noreturn]] void become(const Prepared& prepared) {
  bool ready = ::prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && ::getppid() == prepared.parent;
  const int nothing = ::open("/dev/null", O_RDONLY);
  ready = ready && ::dup2(nothing, STDIN_FILENO) == STDIN_FILENO;
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    ready = ready && ::dup2(prepared.output, stream) == stream;
  }
  for (const int file : prepared.files) ready = ready && ::fcntl(file, F_SETFD, 0) == 0;
  if (ready) {
    ::execvpe(prepared.command.front(), prepared.command.data(), prepared.variables.data());
  }
  ::_exit(kNotRun);
}

// Starts the child, or returns -1 if there is none. Not with fork(), which would copy the tables of
// all memory and, with them, memory that is registered. This is a function of its own because the
// child borrows its stack.
[[gnu::noinline]] pid_t start(const Prepared& prepared) {
  const pid_t pid = ::vfork();
  if (pid == 0) become(prepared);
  return pid;
}

void wait_for(pid_t child, ChildOutcome& outcome) {
  int status = 0;
  outcome.code = kNotRun;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return;
  }
  if (WIFEXITED(status)) outcome.code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
}

}  // namespace

ChildOutcome run_child(const ChildProgram& child) {
  std::vector<std::string> command = child.command;
  std::vector<std::string> variables = child.environment;
  for (char** variable = ::environ; *variable != nullptr; ++variable) {
    variables.emplace_back(*variable);
  }
  const std::vector<char*> words = pointers_to(command);
  const std::vector<char*> values = pointers_to(variables);
  const SaidByChild said;
  const Prepared prepared = {.parent = ::getpid(),
                             .files = child.files,
                             .output = said.descriptor(),
                             .command = words,
                             .variables = values};
  ChildOutcome outcome;
  const pid_t pid = start(prepared);
  outcome.code = kNotRun;
  if (pid > 0) wait_for(pid, outcome);
  outcome.output = said.text();
  return outcome;
}

}  // namespace terrace
