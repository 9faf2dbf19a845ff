#include "runtime/train/run_record.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "runtime/config/train_config.h"
#include "runtime/data/data_format.h"
#include "runtime/tokenizer/choose_tokenizer.h"
#include "runtime/train/resume.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

// Returns whether the run had no tokenizer. If the model directory is gone, nothing says whether it
// had one, and this returns false.
bool has_no_tokenizer(const TrainOptions& run) {
  std::error_code ignored;
  const fs::path model = run.model.model;
  const bool is_gone = model.is_absolute() && !fs::is_directory(model, ignored);
  if (run.data.tokenizer == "auto" && is_gone) return false;
  return tokenizer_path(run.data.tokenizer, run.model.model).empty();
}

}  // namespace

std::optional<TrainOptions> options_of_run(const std::string& checkpoint, Log& log) {
  const std::string file = (fs::path(run_directory_of(checkpoint)) / "config.toml").string();
  if (!fs::exists(file)) return std::nullopt;
  try {
    return parse_train_options({"--config", file});
  } catch (const Error& problem) {
    log.warning(fmt::format("{} cannot be read: {}", file, problem.what()));
    return std::nullopt;
  }
}

namespace {

// Returns whether the data is JSON; of data that is gone, by its name.
bool has_json_documents(const std::string& path) {
  try {
    return holds_json_documents(path);
  } catch (const Error&) {
    return is_jsonl_name(path);
  }
}

}  // namespace

bool trained_on_bytes(const TrainOptions& run, std::int64_t vocabulary) {
  const DataFormat format = parse_data_format(run.data.data_format);
  std::vector<std::string> paths = run.data.data;
  if (!run.data.data_weights.empty()) paths.resize(1);  // the first one decides, as in Dataset
  const std::string first = paths.empty() ? "" : paths.front();
  const bool is_auto = format == DataFormat::kAuto;
  bool is_jsonl = format == DataFormat::kJsonl || (is_auto && has_json_documents(first));
  const bool is_named_text =
      format == DataFormat::kText || (is_auto && fs::path(first).extension() == ".txt");
  bool is_text = is_named_text;
  const auto refuse_to_tokenize = [&](const std::vector<std::string>& files,
                                      DataFormat) -> TokenFile {
    is_jsonl = true;
    throw ConfigError(fmt::format("{} is not tokenized here", files.front()), "train on it");
  };
  try {
    is_text = open_data({.paths = paths,
                         .format = format,
                         .vocabulary = vocabulary,
                         .tokenize = refuse_to_tokenize})
                  .tokens->is_text();
  } catch (const Error&) {
    is_text = is_named_text;  // JSON lines, or the data is gone: the names decide
  }
  return (is_jsonl || is_text) && has_no_tokenizer(run);
}

std::string tokenizer_of_ids(const TrainOptions& run, bool is_bytes) {
  const std::string& choice = run.data.tokenizer;
  if (choice != "auto" && choice != "bytes") return choice;
  return is_bytes ? "bytes" : "auto";
}

}  // namespace terrace
