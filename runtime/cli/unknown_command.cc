#include "runtime/cli/unknown_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "base/nearest_name.h"

namespace terrace {
namespace {

// A command that users know from another program.
struct ForeignCommand {
  std::string_view name;
  std::string_view ours;  // the command that does the same; empty: `how` is all there is to say
  std::string_view how = "";
};

constexpr std::string_view kServe =
    "there is no server: terrace sample continues a text, and programs that serve models read the "
    "Hugging Face directory of a run, final/, or the one that terrace export writes";
constexpr std::string_view kEvaluate =
    "no command evaluates only: terrace train evaluates on --validation-data every --eval-every "
    "steps and after the last";
constexpr std::string_view kUpload =
    "nothing is uploaded: a run's final/, or what terrace export writes, is a Hugging Face "
    "directory that hf upload takes";
constexpr std::string_view kDownload =
    "nothing is downloaded: get a model with hf download NAME --local-dir DIR, and give --model "
    "DIR";
constexpr std::string_view kVersion = "terrace --version prints the version";
constexpr std::string_view kPreferences =
    "training on preferences is not built: terrace train trains on the next token of texts and "
    "answers";
constexpr std::string_view kResume =
    "terrace train --config RUN/config.toml --resume auto continues the run in the directory RUN";
constexpr std::string_view kMemory =
    "terrace train ... --dry-run tells, before a run, the memory that it needs";
constexpr std::string_view kCurves =
    "terrace report RUN --output FILE.html shows the curves; so does TensorBoard: tensorboard "
    "--logdir RUN";

constexpr auto kForeignCommands = std::to_array<ForeignCommand>({
    {"chat", "sample", "with --prompt TEXT"},
    {"complete", "sample"},
    {"generate", "sample"},
    {"infer", "sample"},
    {"inference", "sample"},
    {"predict", "sample"},
    {"run", "sample"},
    {"fine-tune", "train"},
    {"finetune", "train"},
    {"fit", "train"},
    {"launch", "train"},
    {"lora", "train", "with --lora-rank N"},
    {"pretrain", "train", "from random weights with --init random"},
    {"qlora", "train", "with --lora-rank N --base-quantization nf4"},
    {"sft", "train"},
    {"trainer", "train"},
    {"tune", "train"},
    {"dpo", "", kPreferences},
    {"grpo", "", kPreferences},
    {"kto", "", kPreferences},
    {"orpo", "", kPreferences},
    {"ppo", "", kPreferences},
    {"rlhf", "", kPreferences},
    {"continue", "", kResume},
    {"resume", "", kResume},
    {"describe", "inspect"},
    {"info", "inspect"},
    {"list", "inspect"},
    {"ls", "inspect"},
    {"show", "inspect"},
    {"stat", "inspect"},
    {"encode", "tokenize"},
    {"preprocess", "tokenize"},
    {"prepare", "",
     "terrace train reads texts and conversations as they are, and terrace tokenize turns them "
     "into "
     "token files"},
    {"merge-lora", "merge"},
    {"save", "export"},
    {"convert", "",
     "terrace export writes a checkpoint as a Hugging Face directory, and terrace merge an "
     "adapter and its base; other forms, such as GGUF, are not built"},
    {"quantize", "",
     "no command writes quantized weights; terrace train --lora-rank N --base-quantization nf4 "
     "keeps the frozen base of an adapter quantized"},
    {"deploy", "", kServe},
    {"serve", "", kServe},
    {"server", "", kServe},
    {"eval", "", kEvaluate},
    {"evaluate", "", kEvaluate},
    {"test", "", kEvaluate},
    {"validate", "", kEvaluate},
    {"push", "", kUpload},
    {"upload", "", kUpload},
    {"download", "", kDownload},
    {"pull", "", kDownload},
    {"check", "doctor"},
    {"env", "doctor"},
    {"benchmark", "bench"},
    {"estimate", "", kMemory},
    {"estimate-memory", "", kMemory},
    {"tensorboard", "", kCurves},
    {"version", "", kVersion},
    {"-v", "", kVersion},
    {"-V", "", kVersion},
});

std::string remedy_for(std::string_view name, std::span<const std::string_view> built) {
  constexpr std::string_view kAll = "terrace --help lists the commands";
  std::string plain(name);
  std::ranges::replace(plain, '_', '-');
  const auto foreign = std::ranges::find(kForeignCommands, plain, &ForeignCommand::name);
  if (foreign != kForeignCommands.end()) {
    if (foreign->ours.empty()) return std::string(foreign->how);
    const std::string how = foreign->how.empty() ? "" : fmt::format(" {}", foreign->how);
    return fmt::format("here it is terrace {}{}; {}", foreign->ours, how, kAll);
  }
  if (name.starts_with('-')) {
    return fmt::format("the command comes first, for example terrace train {} ...; {}", name, kAll);
  }
  const std::string nearest = nearest_name(plain, built);
  constexpr std::size_t kMostErrors = 2;
  const bool is_close = edit_distance(plain, nearest) <= kMostErrors;
  return is_close ? fmt::format("did you mean {}? {}", nearest, kAll) : std::string(kAll);
}

}  // namespace

ConfigError unknown_command_error(std::string_view name, std::span<const std::string_view> built) {
  return {fmt::format("unknown command '{}'", name), remedy_for(name, built)};
}

}  // namespace terrace
