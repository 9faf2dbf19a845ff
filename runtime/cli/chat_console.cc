#include "runtime/cli/chat_console.h"

#include <fmt/format.h>
#include <signal.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "base/error.h"
#include "base/failure_text.h"
#include "runtime/chat/row_keys.h"
#include "runtime/cli/standard_output.h"

namespace terrace {
namespace {

constexpr const char* kHelp =
    "commands:\n"
    "  /reset        forgets the conversation, but not the system text\n"
    "  /system TEXT  replaces the system text; without TEXT there is none\n"
    "  /save FILE    appends the conversation to FILE as a line of JSON, which terrace train "
    "reads\n"
    "  /help         prints this text\n"
    "  /exit         ends; so does the end of the input (Ctrl-D)\n"
    "Ctrl-C stops an answer and keeps its beginning. A line that begins with a space is never a "
    "command.";

StopRequest interrupted;  // within reach of the signal handler

void note_interrupt(int number) { interrupted.signal = number; }

// While it exists, the first SIGINT sets `interrupted`, and a second one ends the program. An
// ignored SIGINT stays ignored.
class CaughtInterrupt {
 public:
  CaughtInterrupt() {
    interrupted.signal = 0;
    is_caught_ = ::sigaction(SIGINT, nullptr, &before_) == 0 && before_.sa_handler != SIG_IGN;
    if (!is_caught_) return;
    struct sigaction action = {};
    action.sa_handler = note_interrupt;
    action.sa_flags = SA_RESTART | SA_RESETHAND;
    sigemptyset(&action.sa_mask);
    is_caught_ = ::sigaction(SIGINT, &action, nullptr) == 0;
  }
  ~CaughtInterrupt() {
    if (is_caught_) ::sigaction(SIGINT, &before_, nullptr);
  }
  CaughtInterrupt(const CaughtInterrupt&) = delete;
  CaughtInterrupt& operator=(const CaughtInterrupt&) = delete;

 private:
  struct sigaction before_ = {};
  bool is_caught_ = false;
};

bool lacks_last_line_break(const std::string& file) {
  std::ifstream stream(file, std::ios::binary | std::ios::ate);
  if (!stream || stream.tellg() <= 0) return false;
  stream.seekg(-1, std::ios::end);
  return stream.get() != '\n';
}

void append_line(const std::string& file, const std::string& line) {
  const bool needs_break = lacks_last_line_break(file);
  errno = 0;
  std::ofstream stream(file, std::ios::binary | std::ios::app);
  stream << (needs_break ? "\n" : "") << line << '\n';
  stream.close();
  if (!stream) throw IoError({.operation = "write", .path = file, .error_number = errno});
}

}  // namespace

void ChatConsole::run() {
  if (options_.is_interactive) {
    log_.info("say something; /help lists the commands, and /exit ends the conversation");
  }
  std::string line;
  while (read_line(line)) {
    if (without_space_around(line).empty()) continue;
    if (line.front() != '/') {
      ask(line);
    } else if (!obey(line)) {
      return;
    }
  }
  if (options_.is_interactive) print_now("\n");
}

bool ChatConsole::read_line(std::string& line) {
  if (options_.is_interactive) print_now("> ");
  if (!std::getline(input_, line)) return false;
  if (line.ends_with('\r')) line.pop_back();
  return true;
}

bool ChatConsole::obey(const std::string& line) {
  const std::size_t space = line.find_first_of(" \t");
  const std::string name = line.substr(0, space);
  const std::string rest(space == std::string::npos
                             ? std::string_view()
                             : without_space_around(std::string_view(line).substr(space)));
  if (name == "/exit") return false;
  if (name == "/reset") {
    session_.reset();
  } else if (name == "/system") {
    set_system(rest);
  } else if (name == "/save") {
    save(rest);
  } else if (name == "/help") {
    log_.info(kHelp);
  } else {
    log_.info(
        fmt::format("unknown command {}: it was not sent to the model; /help lists the "
                    "commands, and a line that begins with a space is none",
                    name));
  }
  return true;
}

void ChatConsole::ask(const std::string& question) {
  const CaughtInterrupt catching;
  try {
    const Continuation made =
        session_.answer(question, interrupted, [](std::string_view text) { print_now(text); });
    print_now("\n");
    tell_end(made);
  } catch (const ConfigError& refused) {
    log_.info(failure_text(refused));
  }
}

void ChatConsole::tell_end(const Continuation& made) {
  std::string cut;
  if (made.end == SampleEnd::kLength) {
    cut = fmt::format("the answer was cut off after {} tokens (--max-new-tokens)", made.new_tokens);
  } else if (made.end == SampleEnd::kPositions) {
    cut = fmt::format(
        "the answer was cut off: the conversation has reached {} tokens, and there is "
        "room for no more; /reset forgets it",
        session_.positions());
  }
  if (!cut.empty()) log_.info(cut);
  if (!options_.is_interactive) return;
  std::string line = fmt::format("{} tokens", made.new_tokens);
  if (made.new_tokens > 1 && made.later_seconds > 0) {
    line += fmt::format(", {:.1f} tokens/s",
                        static_cast<double>(made.new_tokens - 1) / made.later_seconds);
  }
  if (made.end == SampleEnd::kStopped) line += ", stopped";
  print_now(options_.has_colours ? fmt::format("\x1b[2m{}\x1b[0m\n", line) : line + '\n');
}

void ChatConsole::set_system(const std::string& text) {
  try {
    session_.set_system(text);
  } catch (const ConfigError& refused) {
    log_.info(failure_text(refused));
  }
}

void ChatConsole::save(const std::string& file) {
  if (file.empty()) {
    log_.info("nothing was saved: name the file, /save FILE");
  } else if (session_.is_empty()) {
    log_.info("nothing was saved: the conversation has no answer yet");
  } else {
    try {
      append_line(file, session_.to_json());
      log_.info(fmt::format("{}: the conversation was added as a line", file));
    } catch (const IoError& problem) {
      log_.info(fmt::format("nothing was saved: {}", failure_text(problem)));
    }
  }
}

}  // namespace terrace
