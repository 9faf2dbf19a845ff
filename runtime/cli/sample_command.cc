#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <string_view>

#include "base/error.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/console_log.h"
#include "runtime/config/flag_reader.h"
#include "runtime/train/sampler.h"

namespace terrace {
namespace {

constexpr CommandSpec kSampleCommand = {"terrace sample",
                                        "Continues a text with a model. "
                                        "Prints the prompt and what follows it."};

enum : std::size_t {
  kModel,
  kIgnoredKeys,
  kTokenizer,
  kPrompt,
  kMaxNewTokens,
  kTemperature,
  kSeed
};
constexpr auto kSampleFlags = std::to_array<FlagSpec>({
    {"model", "Model", "DIR",
     "A run's final/ or checkpoint-N, a Hugging Face directory, or an adapter"},
    {"ignore-config-keys", "Model", "KEY", "Keys of its config.json that do not change the model",
     FlagArity::kList},
    {"tokenizer", "Model", "auto|bytes|FILE",
     "What makes tokens of text; auto: the directory's own, bytes where it has none (auto)"},
    {"prompt", "Text", "TEXT", "What to continue"},
    {"max-new-tokens", "Text", "N", "How many tokens to add; fewer up to the end token (200)"},
    {"temperature", "Text", "T", "1: as the model says; towards 0: the likeliest (1.0)"},
    {"seed", "Text", "N", "Of the choices (1234)"},
});

// A large model takes seconds for a token: whoever reads does not wait for the last.
void print_now(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) {
    return;
  }
  throw IoError({.operation = "write", .path = "standard output", .error_number = errno});
}

}  // namespace

int run_sample(int argc, const char* const* argv) {
  const std::vector<std::string> arguments(argv + 2, argv + argc);
  if (wants_help(arguments)) {
    fmt::print("{}", flags_help(kSampleCommand, kSampleFlags));
    return 0;
  }
  const auto values = read_flags(kSampleCommand, kSampleFlags, arguments);
  if (!values[kModel]) throw ConfigError("--model is missing", "name a run's final/ directory");
  if (!values[kPrompt]) throw ConfigError("--prompt is missing", "give a text to continue");
  SampleOptions options;
  options.model_directory = values[kModel]->name();
  options.prompt = values[kPrompt]->name();
  if (values[kTokenizer]) options.tokenizer = values[kTokenizer]->name();
  if (values[kIgnoredKeys]) options.ignored_config_keys = values[kIgnoredKeys]->texts();
  if (values[kMaxNewTokens]) {
    options.max_new_tokens = values[kMaxNewTokens]->integer(1, 1'000'000);
  }
  if (values[kTemperature]) options.temperature = values[kTemperature]->number(0);
  if (values[kSeed]) options.seed = values[kSeed]->unsigned_integer();
  ConsoleLog log;
  sample_text(options, [](std::string_view text) { print_now(text); }, log);
  print_now("\n");
  return 0;
}

}  // namespace terrace
