#pragma once

#include <istream>
#include <string>

#include "base/log.h"
#include "runtime/train/chat_session.h"

namespace terrace {

// Holds a conversation with a person or a program: each line of the input is a message of the
// user, or a command that begins with a slash. Answers go to standard output as they are made, and
// all else to the log. For one thread.
class ChatConsole {
 public:
  struct Options {
    bool is_interactive = false;  // a person reads and types on a terminal: there are prompts
    bool has_colours = false;
  };
  // Borrows all but the options.
  ChatConsole(ChatSession& session, std::istream& input, Log& log, const Options& options)
      : session_(session), input_(input), log_(log), options_(options) {}

  // Returns at the end of the input and at /exit. Throws what ChatSession throws, except
  // ConfigError, which it tells; IoError where the answers cannot be written.
  void run();

 private:
  bool read_line(std::string& line);
  // Returns whether the conversation goes on.
  bool obey(const std::string& line);
  void ask(const std::string& question);
  void tell_end(const Continuation& made);
  void set_system(const std::string& text);
  void save(const std::string& file);

  ChatSession& session_;
  std::istream& input_;
  Log& log_;
  const Options options_;
};

}  // namespace terrace
