#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/cli/chat_console.h"
#include "runtime/cli/choice_flags.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/console_log.h"
#include "runtime/cli/standard_output.h"
#include "runtime/config/flag_reader.h"
#include "runtime/config/thread_count.h"
#include "runtime/train/chat_session.h"

namespace terrace {
namespace {

constexpr auto kChatOperands = std::to_array<std::string_view>({"DIR"});
constexpr CommandSpec kChatCommand = {
    "terrace chat",
    "Holds a conversation with the model in DIR: a run's final/ or checkpoint-N, a Hugging Face "
    "directory, or an adapter. Each line of the input is a message of the user; the answer is "
    "printed as it is generated. /reset forgets the conversation, /save FILE saves it for "
    "training, "
    "/system TEXT replaces the system text, and /exit or the end of the input ends it; /help lists "
    "these. "
    "If the input is not a terminal, standard output has only the answers.",
    kChatOperands};

enum : std::size_t {
  kChatAdapter,
  kChatTemplate,
  kChatTokenizer,
  kChatIgnoredKeys,
  kChatSystem,
  kChatMaxNewTokens,
  kChatTemperature,
  kChatTopK,
  kChatTopP,
  kChatSeed,
  kChatThreads
};
constexpr auto kChatFlags = std::to_array<FlagSpec>({
    {"adapter", "Model", "DIR", "An adapter over DIR, which is then the directory of its base"},
    {"chat-template", "Model", "NAME|FILE",
     "The chat template: a file of Jinja, the name of a template of the model, or chatml or alpaca "
     "(the model's)"},
    {"tokenizer", "Model", "auto|bytes|FILE",
     "The tokenizer; auto: the one in the model directory, or bytes if it has none (auto)"},
    {"ignore-config-keys", "Model", "KEY",
     "Keys of its config.json that Terrace does not know and that do not change the model",
     FlagArity::kList},
    {"system", "Conversation", "TEXT", "The system text, which stands before the conversation"},
    {"max-new-tokens", "Conversation", "N", "Largest number of tokens of an answer (1024)"},
    {"temperature", "Choice", "T",
     "The logits are divided by this, before all else; 0: always the likeliest token (0.7)"},
    {"top-k", "Choice", "N", "Then only the N likeliest tokens are kept; 0: all (0)"},
    {"top-p", "Choice", "P",
     "Then only the likeliest tokens that together have this probability, 0 < P <= 1 (1.0)"},
    {"seed", "Choice", "N",
     "Seed of the random numbers; --threads does not change the answers (1234)"},
    {"threads", "Machine", "N", "Number of compute threads (as many as the process may use)"},
});

ChatOptions chat_options_of(const CommandLine& given) {
  const auto& values = given.values;
  ChatOptions options;
  options.source.directory = given.operands.front();
  options.source.named_by = "";
  if (values[kChatAdapter]) options.source.adapter = values[kChatAdapter]->name();
  if (values[kChatTokenizer]) options.source.tokenizer = values[kChatTokenizer]->name();
  if (values[kChatIgnoredKeys]) {
    options.source.ignored_config_keys = values[kChatIgnoredKeys]->texts();
  }
  if (values[kChatTemplate]) options.chat_template = values[kChatTemplate]->name();
  if (values[kChatSystem]) options.system = values[kChatSystem]->text();
  options.answers.max_new_tokens =
      values[kChatMaxNewTokens] ? values[kChatMaxNewTokens]->integer(1, 1'000'000) : 1024;
  options.answers.choice = read_choice(
      {values[kChatTemperature], values[kChatTopK], values[kChatTopP]}, {.temperature = 0.7});
  if (values[kChatSeed]) options.answers.seed = values[kChatSeed]->unsigned_integer();
  if (values[kChatThreads]) options.threads = read_threads(*values[kChatThreads]);
  return options;
}

}  // namespace

int run_chat(int argc, const char* const* argv) {
  const std::vector<std::string> arguments(argv + 2, argv + argc);
  if (wants_help(arguments)) {
    fmt::print("{}", flags_help(kChatCommand, kChatFlags));
    return 0;
  }
  const ChatOptions options =
      chat_options_of(read_command_line(kChatCommand, kChatFlags, arguments));
  ConsoleLog log;
  ChatSession session(options, log);
  const bool is_interactive = isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
  ChatConsole(session, std::cin, log,
              {.is_interactive = is_interactive, .has_colours = takes_colours(STDOUT_FILENO)})
      .run();
  return 0;
}

}  // namespace terrace
