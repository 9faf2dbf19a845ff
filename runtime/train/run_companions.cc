#include "runtime/train/run_companions.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "runtime/chat/model_template.h"
#include "runtime/checkpoint/file_system.h"
#include "runtime/tokenizer/load_tokenizer.h"
#include "runtime/train/run_record.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

// Files that name the tokens that begin and end a document, as load_tokenizer() reads them.
constexpr auto kBesideTokenizer = std::to_array<const char*>(
    {"tokenizer_config.json", "special_tokens_map.json", "generation_config.json"});

// Adds the tokenizer at `path`, a file or a directory with one, and the files beside it.
void add_named_tokenizer(const std::string& path, Log& log, std::vector<HfCompanion>& files) {
  const auto add = [&](const std::string& name, const fs::path& file) {
    try {
      files.push_back({name, read_whole_file(system_files(), file.string())});
    } catch (const IoError& problem) {
      log.warning(fmt::format("--tokenizer {}: {}: the saved model will not contain it", path,
                              problem.what()));
    }
  };
  const fs::path file = fs::is_directory(path) ? find_tokenizer_file(path) : path;
  add(file.extension() == ".json" ? "tokenizer.json" : "tokenizer.model", file);
  for (const char* name : kBesideTokenizer) {
    const fs::path beside = file.parent_path() / name;
    if (fs::is_regular_file(beside)) add(name, beside);
  }
}

// Adds the template that --chat-template names, in place of the model's, or else the model's.
void add_template(const TrainOptions& options, Log& log, std::vector<HfCompanion>& files) {
  constexpr const char* kFile = "chat_template.jinja";
  const std::string& name = options.data.chat_template;
  try {
    std::string text = (name.empty() ? find_model_template(options.model.model, false)
                                     : find_named_template(name, options.model.model))
                           .text;
    std::erase_if(files, [&](const HfCompanion& file) { return file.name == kFile; });
    files.push_back({kFile, std::move(text)});
  } catch (const Error& problem) {
    log.warning(
        fmt::format("{}: the saved model will not contain the chat template", problem.what()));
  }
}

// Returns which companion files of the model directory are taken; none at all for an adapter that
// was trained with another tokenizer than its base's.
std::optional<CompanionScope> scope_of(const TrainedRun& run, const std::string& tokenizer) {
  const bool has_ids = tokenizer == "auto";
  if (run.is_adapter) return has_ids ? std::optional(CompanionScope::kTokenizer) : std::nullopt;
  return has_ids ? CompanionScope::kAll : CompanionScope::kWithoutTokenizer;
}

}  // namespace

std::vector<HfCompanion> companions_of_run(const TrainedRun& run, Log& log) {
  const std::string tokenizer = tokenizer_of_ids(run.options, run.is_bytes);
  std::vector<HfCompanion> files;
  if (const std::optional<CompanionScope> scope = scope_of(run, tokenizer)) {
    files = read_hf_companions(run.options.model.model, *scope, log);
  }
  if (tokenizer != "auto" && tokenizer != "bytes") add_named_tokenizer(tokenizer, log, files);
  const bool lacks_template = run.has_conversations && tokenizer != "auto";
  if (lacks_template || !run.options.data.chat_template.empty()) {
    add_template(run.options, log, files);
  }
  return files;
}

}  // namespace terrace
