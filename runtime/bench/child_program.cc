#include "runtime/bench/child_program.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace terrace {
namespace {

constexpr int kNotRun = 127;

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

int wait_for(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return kNotRun;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : kNotRun;
}

}  // namespace

int run_child(const ChildProgram& child) {
  std::vector<std::string> command = child.command;
  std::vector<std::string> variables = child.environment;
  for (char** variable = ::environ; *variable != nullptr; ++variable) {
    variables.emplace_back(*variable);
  }
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  constexpr int kMode = 0600;
  ::posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, child.output_file.c_str(),
                                     O_WRONLY | O_CREAT | O_TRUNC, kMode);
  ::posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
  pid_t pid = -1;
  const int error = ::posix_spawnp(&pid, command.front().c_str(), &files, nullptr,
                                   pointers_to(command).data(), pointers_to(variables).data());
  ::posix_spawn_file_actions_destroy(&files);
  return error == 0 ? wait_for(pid) : kNotRun;
}

}  // namespace terrace
