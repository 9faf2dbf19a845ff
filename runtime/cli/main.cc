#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "base/address_space.h"
#include "base/error.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/console_log.h"
#include "runtime/cli/failure.h"
#include "runtime/cli/unknown_command.h"
#include "runtime/config/version.h"

namespace terrace {
namespace {

struct Command {
  std::string_view name;
  std::string_view group;
  std::string_view summary;
  int (*run)(int argc, const char* const* argv);
};

constexpr auto kCommands = std::to_array<Command>({
    {"train", "Training", "trains a model", run_train},
    {"plan", "Training", "reports what a training run needs on a machine, and what limits it",
     run_plan},
    {"tokenize", "Training", "converts text into token files", run_tokenize},
    {"sample", "Results", "continues a text with a trained model", run_sample},
    {"chat", "Results", "holds a conversation with a trained model", run_chat},
    {"export", "Results", "writes a checkpoint as a Hugging Face directory", run_export},
    {"merge", "Results", "merges an adapter into its base model", run_merge},
    {"inspect", "Results", "describes a checkpoint, model or data file", run_inspect},
    {"report", "Results", "shows runs on one page, or gives their last figures to Prometheus",
     run_report},
    {"diff", "Results", "finds where two runs part", run_diff},
    {"doctor", "Machine",
     "reports which parts of this machine training can use, and how to make more usable",
     run_doctor},
    {"bench", "Machine", "measures parts of Terrace against the machine's limits", run_bench},
    {"profile", "Machine", "measures the machine and writes its profile, for plan", run_profile},
});

std::string help() {
  std::string text =
      "Trains language models whose state does not fit in memory.\n"
      "Usage: terrace COMMAND [FLAGS]\n";
  std::string_view group;
  for (const Command& command : kCommands) {
    if (command.group != group) text += fmt::format("\n{}:\n", command.group);
    group = command.group;
    text += fmt::format("  {:<10}{}\n", command.name, command.summary);
  }
  return text +
         "\n"
         "Help:\n"
         "  --help    print this text; COMMAND --help lists the flags of a command\n"
         "  --version print the version\n"
         "\n"
         "Exit codes: 0 success, 1 failed at run time, 2 usage or configuration error, 3 does not "
         "fit, 4 the\n"
         "environment lacks something, 5 corrupt data or checkpoint, 6 the loss or a gradient is "
         "not a number,\n"
         "7 two runs differ (terrace diff), 75 saved after a signal (run again to go on), 128+N "
         "ended by another\nsignal N.\n";
}

const Command& find_command(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Command& command : kCommands) {
    if (command.name == name) return command;
    names.push_back(command.name);
  }
  throw unknown_command_error(name, names);
}

int run(int argc, const char* const* argv) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  if (name.empty()) {
    write_to_standard_error(help());
    return kExitUsage;
  }
  if (name == "--help" || name == "-h" || name == "help") {
    fmt::print("{}", help());
    return 0;
  }
  if (name == "--version") {
    fmt::print("terrace {}\n", terrace_version());
    return 0;
  }
  return find_command(name).run(argc, argv);
}

// Opens /dev/null in place of closed standard streams. Otherwise the next opened files would take
// their descriptors and get the text meant for the console. It is opened for reading only, so
// writing a command's output still fails.
void hold_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) != -1) continue;
    if (::open("/dev/null", O_RDONLY) != stream) return;  // open() takes the lowest free number
  }
}

constexpr std::size_t kSmallStackBytes = 2 << 20;
constexpr std::size_t kStackBytes = 8 << 20;

// Returns the largest stack that the limit on addresses (ulimit -v) allows: stacks count towards
// it, and each may take a small part of it.
std::size_t stack_bytes_within_limit() {
  constexpr std::size_t kPart = 64;
  const AddressSpace space = read_address_space();
  if (!space.limit_bytes) return std::numeric_limits<std::size_t>::max();
  return std::clamp(*space.limit_bytes / kPart, kSmallStackBytes, kStackBytes);
}

// Sets the stack size that threads get by default. Without this it follows the limit on the first
// thread's stack (ulimit -s), which may be too small for the libraries that compute: a run would
// then end with a signal and without a message.
void give_threads_large_stacks() {
  pthread_attr_t attributes;
  if (pthread_getattr_default_np(&attributes) != 0) return;
  std::size_t bytes = 0;
  if (pthread_attr_getstacksize(&attributes, &bytes) == 0) {
    const std::size_t wanted =
        std::min(stack_bytes_within_limit(), bytes < kSmallStackBytes ? kStackBytes : bytes);
    if (wanted != bytes && pthread_attr_setstacksize(&attributes, wanted) == 0) {
      pthread_setattr_default_np(&attributes);
    }
  }
  pthread_attr_destroy(&attributes);
}

// Names the command for reports of defects: "terrace train", "terrace bench io".
std::string command_text(int argc, const char* const* argv) {
  std::string text = "terrace";
  if (argc > 1) text += fmt::format(" {}", argv[1]);
  if (argc > 2 && argv[1] == std::string_view("bench")) text += fmt::format(" {}", argv[2]);
  return text;
}

int run_and_report(int argc, const char* const* argv) {
  try {
    const int code = run(argc, argv);
    if (std::fflush(stdout) != 0) {
      throw IoError({.operation = "write", .path = "standard output", .error_number = errno});
    }
    return code;
  } catch (const std::exception& error) {
    std::fflush(stdout);
    return report_failure(error, command_text(argc, argv));
  }
}

// Reports an exception that nothing can catch any more, for example on a library's thread.
[[noreturn]] void end_uncaught() {
  try {
    if (const std::exception_ptr failure = std::current_exception()) {
      std::rethrow_exception(failure);
    }
  } catch (const std::exception& failure) {
    try {
      report_failure(failure, "the program");
    } catch (...) {
      write_to_standard_error("terrace: error: a defect of Terrace ended the program\n");
    }
  } catch (...) {
    write_to_standard_error("terrace: error: a defect of Terrace ended the program\n");
  }
  std::abort();
}

bool has_small_stack() {
  rlimit limit = {};
  return getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < kSmallStackBytes;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  std::set_terminate(terrace::end_uncaught);
  terrace::hold_standard_streams();
  // A file that reaches the size limit then causes an error that names the file (EFBIG).
  std::signal(SIGXFSZ, SIG_IGN);
  terrace::give_threads_large_stacks();
  if (!terrace::has_small_stack()) return terrace::run_and_report(argc, argv);
  int code = 0;
  try {
    std::thread([&] { code = terrace::run_and_report(argc, argv); }).join();
  } catch (const std::system_error&) {
    return terrace::report_failure(
        terrace::EnvironmentError(
            "a thread with a larger stack than the main thread's cannot be started",
            "raise the limit on stacks (ulimit -s), or " + terrace::remedy_for_threads()),
        "terrace");
  }
  return code;
}
