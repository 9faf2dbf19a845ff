#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"
#include "runtime/cli/choice_flags.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/console_log.h"
#include "runtime/cli/standard_output.h"
#include "runtime/config/flag_reader.h"
#include "runtime/config/host_facts.h"
#include "runtime/config/thread_count.h"
#include "runtime/config/train_flags.h"
#include "runtime/config/version.h"
#include "runtime/train/sampler.h"

namespace terrace {
namespace {

constexpr CommandSpec kSampleCommand = {
    "terrace sample",
    "Continues a text with a model. Prints the prompt and the tokens that follow it as they are "
    "generated, until --max-new-tokens, the end token or a stop text. A model with learned "
    "positions (gpt2) stops at its last position, with a warning. Other models go on past "
    "max_position_embeddings, with a warning; if their rotary type is dynamic, each further token "
    "then costs as much as the whole text."};

enum : std::size_t {
  kModel,
  kAdapter,
  kIgnoredKeys,
  kTokenizer,
  kPrompt,
  kPromptFile,
  kMaxNewTokens,
  kStop,
  kTemperature,
  kTopK,
  kTopP,
  kSeed,
  kSampleThreads,
  kSampleHostMemory,
  kSampleDrive,
  kSamplePlace,
  kSampleEngine,
  kSampleLookahead,
  kAnswerOnly,
  kSampleJson
};
constexpr auto kSampleFlags = std::to_array<FlagSpec>({
    {"model", "Model", "DIR",
     "A run's final/ or checkpoint-N, a Hugging Face directory, or an adapter"},
    {"adapter", "Model", "DIR", "An adapter over --model, which is then the directory of its base"},
    {"ignore-config-keys", "Model", "KEY",
     "Keys of its config.json that Terrace does not know and that do not change the model",
     FlagArity::kList},
    {"tokenizer", "Model", "auto|bytes|FILE",
     "The tokenizer; auto: the one in the model directory, or bytes if it has none (auto)"},
    {"prompt", "Text", "TEXT", "The text to continue"},
    {"prompt-file", "Text", "FILE",
     "Read the prompt from this file, unchanged; -: from standard input"},
    {"max-new-tokens", "Text", "N", "Largest number of tokens to add (200)"},
    {"stop", "Text", "TEXT", "Stop before the first of these texts appears", FlagArity::kList},
    {"temperature", "Choice", "T",
     "The logits are divided by this, before all else; 0: always the likeliest token (1.0)"},
    {"top-k", "Choice", "N", "Then only the N likeliest tokens are kept; 0: all (0)"},
    {"top-p", "Choice", "P",
     "Then only the likeliest tokens that together have this probability, 0 < P <= 1 (1.0)"},
    {"seed", "Choice", "N",
     "Seed of the random numbers; --threads does not change the text (1234)"},
    {"threads", "Machine", "N", "Number of compute threads (as many as the process may use)"},
    {"host-memory", "Machine", "SIZE",
     "Memory budget for parameters, keys, values and activations; this flag and the ones below "
     "keep parameters in tiers, as in training (without them: all in memory)"},
    {"nvme", "Machine", "DIR[:SIZE]",
     "A directory on a drive; parameters are read from it while others compute; several are "
     "striped",
     FlagArity::kRepeated},
    {"place-parameters", "Machine", "auto|host|nvme",
     "Where parameters live between uses (auto: in memory up to the budget)"},
    {"io-engine", "Machine", "auto|io_uring|posix", "How drives are read (auto)"},
    {"lookahead", "Machine", "UNITS",
     "Prefetch distance: how many units ahead parameters are read at most (auto)"},
    {"answer-only", "Output", "", "Print the new text without the prompt", FlagArity::kSwitch},
    {"json", "Output", "", "Print one JSON document instead of the text", FlagArity::kSwitch},
});

using SampleFlagValues = std::vector<std::optional<FlagValue>>;

std::string read_all(std::istream& stream) {
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

std::string text_of_file(const FlagValue& flag) {
  const std::string& name = flag.name();
  std::string text;
  if (name == "-") {
    text = read_all(std::cin);
  } else {
    std::ifstream file(name, std::ios::binary);
    const bool is_directory = std::filesystem::is_directory(name);
    if (file && !is_directory) text = read_all(file);
    if (!file || is_directory)
      flag.refuse("cannot be read", "name a file of text, or - for standard input");
  }
  if (text.empty()) flag.refuse("is empty", "give a text to continue");
  return text;
}

std::string prompt_of(const SampleFlagValues& values) {
  if (values[kPrompt] && values[kPromptFile]) {
    throw ConfigError("--prompt and --prompt-file are both given", "give one of them");
  }
  if (values[kPromptFile]) return text_of_file(*values[kPromptFile]);
  if (!values[kPrompt]) {
    throw ConfigError("--prompt is missing",
                      "give a text to continue, or a file of it with --prompt-file");
  }
  return values[kPrompt]->name();
}

// Returns the tier options, read as `terrace train` reads them.
std::optional<TierOptions> tiers_of(const SampleFlagValues& values) {
  TrainOptions options;
  bool is_given = false;
  for (const TrainFlag& flag : tier_flags()) {
    for (std::size_t i = kSampleHostMemory; i <= kSampleLookahead; ++i) {
      if (flag.spec.name != kSampleFlags.at(i).name || !values[i]) continue;
      set_flag(flag, options, *values[i]);
      is_given = true;
    }
  }
  if (options.tiers.places[StateClass::kParameters] == Placement::kDevice) {
    values[kSamplePlace]->refuse("there is no device memory: sampling computes on the CPU",
                                 "give auto, host or nvme");
  }
  if (options.tiers.places[StateClass::kParameters] == Placement::kNvme &&
      options.tiers.nvme.empty()) {
    values[kSamplePlace]->refuse("no drive is named", "give --nvme DIR, or place them on host");
  }
  return is_given ? std::optional(options.tiers) : std::nullopt;
}

SampleOptions sample_options_of(const SampleFlagValues& values) {
  if (!values[kModel]) throw ConfigError("--model is missing", "name a run's final/ directory");
  SampleOptions options;
  options.source.directory = values[kModel]->name();
  if (values[kAdapter]) options.source.adapter = values[kAdapter]->name();
  if (values[kTokenizer]) options.source.tokenizer = values[kTokenizer]->name();
  if (values[kIgnoredKeys]) options.source.ignored_config_keys = values[kIgnoredKeys]->texts();
  if (values[kMaxNewTokens]) {
    options.max_new_tokens = values[kMaxNewTokens]->integer(1, 1'000'000);
  }
  if (values[kStop]) options.stop_texts = values[kStop]->texts();
  for (const std::string& text : options.stop_texts) {
    if (text.empty()) values[kStop]->refuse("is empty", "give a text to end at");
  }
  options.choice = read_choice({values[kTemperature], values[kTopK], values[kTopP]});
  if (values[kSeed]) options.seed = values[kSeed]->unsigned_integer();
  if (values[kSampleThreads]) options.threads = read_threads(*values[kSampleThreads]);
  options.tiers = tiers_of(values);
  options.prompt = prompt_of(values);
  return options;
}

void print_document(const std::string& prompt, const std::string& text,
                    const SampleOutcome& outcome) {
  using Document = nlohmann::ordered_json;
  const auto later = static_cast<double>(outcome.new_tokens - 1);
  const Document result = {
      {"prompt", prompt},
      {"text", text},
      {"end", name_of(outcome.end)},
      {"prompt_tokens", outcome.prompt_tokens},
      {"new_tokens", outcome.new_tokens},
      {"prompt_s", outcome.prompt_seconds},
      {"tokens_per_s", later > 0 ? Document(later / outcome.token_seconds) : Document()},
      {"load_s", outcome.load_seconds},
      {"nvme_read_bytes_per_pass", outcome.read_bytes_of_pass}};
  const Document document = {{"schema", "terrace.sample/1"},
                             {"version", terrace_version()},
                             {"host", Document::parse(host_facts_json())},
                             {"results", Document::array({result})}};
  // Bytes that are not UTF-8 become U+FFFD.
  print_now(document.dump(2, ' ', false, Document::error_handler_t::replace) + "\n");
}

}  // namespace

int run_sample(int argc, const char* const* argv) {
  const std::vector<std::string> arguments(argv + 2, argv + argc);
  if (wants_help(arguments)) {
    fmt::print("{}", flags_help(kSampleCommand, kSampleFlags));
    return 0;
  }
  const SampleFlagValues values = read_flags(kSampleCommand, kSampleFlags, arguments);
  const SampleOptions options = sample_options_of(values);
  ConsoleLog log;
  const bool only_answer = values[kAnswerOnly] && values[kAnswerOnly]->on_off();
  if (values[kSampleJson] && values[kSampleJson]->on_off()) {
    if (only_answer) {
      values[kAnswerOnly]->refuse("is given with --json",
                                  "leave it out: the document has the new "
                                  "text by itself");
    }
    std::string text;
    const auto outcome = sample_text(options, [&](std::string_view piece) { text += piece; }, log);
    print_document(options.prompt, text.substr(options.prompt.size()), outcome);
    return 0;
  }
  std::size_t left_out = only_answer ? options.prompt.size() : 0;  // of the text, which begins so
  const auto print = [&left_out](std::string_view text) {
    const std::size_t hidden = std::min(left_out, text.size());
    left_out -= hidden;
    if (hidden < text.size()) print_now(text.substr(hidden));
  };
  sample_text(options, print, log);
  print_now("\n");
  return 0;
}

}  // namespace terrace
