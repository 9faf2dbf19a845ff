#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/error.h"
#include "memory/host/host_limits.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/console_log.h"
#include "runtime/cli/progress_console.h"
#include "runtime/cli/standard_output.h"
#include "runtime/config/flag_reader.h"
#include "runtime/data/run_directories.h"
#include "runtime/data/text_files.h"
#include "runtime/data/tokenize_files.h"
#include "runtime/tokenizer/load_tokenizer.h"

namespace terrace {
namespace {

constexpr auto kTokenizeOperands = std::to_array<std::string_view>({"PATH"});
constexpr CommandSpec kTokenizeCommand = {
    .name = "terrace tokenize",
    .summary =
        "Converts text files or JSON lines into a file of token ids. Each PATH is a file or a "
        "directory of files; each text, or each line of JSON, is one document. Writes raw ids of 2 "
        "bytes, or of 4 bytes if the vocabulary has 65,536 ids or more. Beside them it writes "
        "FILE.idx, which says where documents end, and, if there are prompts or masks, FILE.mask, "
        "which says which tokens are trained on.",
    .operands = kTokenizeOperands,
    .repeats_last_operand = true};

enum : std::size_t { kTokenizerFlag, kChatTemplateFlag, kAppendEosFlag, kOutputFlag, kThreadsFlag };
constexpr auto kTokenizeFlags = std::to_array<FlagSpec>({
    {"tokenizer", "Text", "FILE",
     "A tokenizer.json, a SentencePiece .model, a directory with one, or bytes"},
    {"chat-template", "Text", "NAME|FILE",
     "The template that turns conversations into text: a file, or chatml, alpaca or the name of a "
     "template beside the tokenizer (the template beside the tokenizer)"},
    {"append-eos", "Text", "on|off",
     "Add the end token after each document (on, if the tokenizer names one)"},
    {"output", "Result", "FILE",
     "The token file to write; run the same command again to continue after an interruption"},
    {"threads", "Machine", "N", "Number of compute threads (as many as the process may use)"},
});

struct LoadedTokenizer {
  std::unique_ptr<Tokenizer> tokenizer;
  std::uint64_t hash = 0;
  std::string directory;  // that the tokenizer's file is in; empty for bytes
};

LoadedTokenizer load_with_hash(const std::string& name, const std::string& output, Log& log) {
  if (name == "bytes") return {make_bytes_tokenizer(), 0, ""};
  const std::string file = std::filesystem::is_directory(name) ? find_tokenizer_file(name) : name;
  check_not_replaced(file, output);
  std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(name, log);
  const std::string directory = std::filesystem::absolute(file).parent_path().string();
  return {std::move(tokenizer), hash_of_file(file), directory};
}

std::string tokenize_summary(const TokenizeResult& result, const std::string& output,
                             double seconds) {
  std::string text =
      fmt::format("{}: {} tokens of {} documents, raw-u{}, from {}", output, result.done.tokens,
                  result.done.documents, 8 * result.width, format_size(result.done.bytes));
  if (result.trained_tokens) {
    text += fmt::format("; {} tokens are trained on", *result.trained_tokens);
  }
  if (result.resumed_bytes > 0) {
    text += fmt::format("; {} of the input had been tokenized before",
                        format_size(result.resumed_bytes));
  }
  const double bytes = static_cast<double>(result.done.bytes - result.resumed_bytes);
  return text +
         fmt::format(" ({:.1f} s, {})\n", seconds, format_rate(seconds > 0 ? bytes / seconds : 0));
}

}  // namespace

int run_tokenize(int argc, const char* const* argv) {
  const std::vector<std::string> arguments(argv + 2, argv + argc);
  if (wants_help(arguments)) {
    fmt::print("{}", flags_help(kTokenizeCommand, kTokenizeFlags));
    return 0;
  }
  const auto [values, paths] = read_command_line(kTokenizeCommand, kTokenizeFlags, arguments);
  if (!values[kTokenizerFlag]) {
    throw ConfigError("--tokenizer is missing", "name a tokenizer.json or a .model");
  }
  if (!values[kOutputFlag])
    throw ConfigError("--output is missing", "name the token file to write");
  TokenizeRequest request;
  request.output = values[kOutputFlag]->name();
  request.files = list_text_files(paths, request.output);
  request.is_jsonl = are_json_lines(request.files);
  if (values[kAppendEosFlag]) request.append_end = values[kAppendEosFlag]->on_off();
  request.threads = values[kThreadsFlag] ? static_cast<int>(values[kThreadsFlag]->integer(1, 1024))
                                         : read_host_limits().usable_cpus();

  ProgressConsole console(stderr, {.is_terminal = erases_lines(STDERR_FILENO)});
  ConsoleLog log([&](std::string_view text) {
    console.above_progress([&] { write_to_standard_error(text); });
  });
  const std::string left_out = describe_left_out("PATH", run_directories_below(paths));
  if (!left_out.empty()) log.info(left_out);
  const LoadedTokenizer loaded =
      load_with_hash(values[kTokenizerFlag]->name(), request.output, log);
  request.tokenizer_hash = loaded.hash;
  if (values[kAppendEosFlag] && request.append_end && !loaded.tokenizer->end_token()) {
    throw ConfigError("--append-eos on: the tokenizer does not name an end token",
                      "name it (eos_token) in a tokenizer_config.json beside the tokenizer");
  }
  request.chat_template = {
      .model_directory = loaded.directory,
      .name = values[kChatTemplateFlag] ? values[kChatTemplateFlag]->name() : ""};
  const SystemClock clock;
  const std::int64_t begin_ns = clock.now_ns();
  console.begin_phase("tokenizing");
  const TokenizeResult result =
      tokenize_files(*loaded.tokenizer, request, [&](const TokenizeProgress& progress) {
        console.advance_phase(static_cast<double>(progress.bytes) /
                              static_cast<double>(progress.bytes_of_all));
      });
  console.end_phase();
  fmt::print("{}", tokenize_summary(result, request.output,
                                    static_cast<double>(clock.now_ns() - begin_ns) * 1e-9));
  return 0;
}

}  // namespace terrace
