#include "runtime/train/run_companions.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <string>

#include "base/error.h"
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

}  // namespace

std::vector<HfCompanion> companions_of_run(const TrainedRun& run, Log& log) {
  const std::string tokenizer = tokenizer_of_ids(run.options, run.is_bytes);
  const bool is_named = tokenizer != "auto" && tokenizer != "bytes";
  std::vector<HfCompanion> files;
  if (!run.is_adapter) {
    const CompanionScope scope =
        tokenizer == "auto" ? CompanionScope::kAll : CompanionScope::kWithoutTokenizer;
    files = read_hf_companions(run.options.model.model, scope, log);
  }
  if (is_named) add_named_tokenizer(tokenizer, log, files);
  return files;
}

}  // namespace terrace
