#include "runtime/train/run_companions.h"

#include <fmt/format.h>

#include <filesystem>
#include <string>

#include "base/error.h"
#include "runtime/checkpoint/file_system.h"
#include "runtime/tokenizer/load_tokenizer.h"
#include "runtime/train/run_record.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

// Adds the tokenizer at `path`, a file or a directory with one.
void add_named_tokenizer(const std::string& path, Log& log, std::vector<HfCompanion>& files) {
  const fs::path file = fs::is_directory(path) ? find_tokenizer_file(path) : path;
  const std::string name = file.extension() == ".json" ? "tokenizer.json" : "tokenizer.model";
  try {
    files.push_back({name, read_whole_file(system_files(), file.string())});
  } catch (const IoError& problem) {
    log.warning(
        fmt::format("--tokenizer {}: {}: the model will be without it", path, problem.what()));
  }
}

}  // namespace

std::vector<HfCompanion> companions_of_run(const TrainOptions& options, bool is_bytes, Log& log) {
  const std::string tokenizer = tokenizer_of_ids(options, is_bytes);
  if (tokenizer == "auto") {
    return read_hf_companions(options.model.model, CompanionScope::kAll, log);
  }
  std::vector<HfCompanion> files =
      read_hf_companions(options.model.model, CompanionScope::kWithoutTokenizer, log);
  if (tokenizer != "bytes") add_named_tokenizer(tokenizer, log, files);
  return files;
}

}  // namespace terrace
