#include "runtime/data/text_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <system_error>

#include "base/error.h"
#include "runtime/data/data_files.h"
#include "runtime/data/token_file_writer.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

// Returns those names at which there is a file.
std::vector<std::string> names_there(const std::vector<std::string>& names) {
  std::vector<std::string> there;
  std::error_code ignored;
  std::ranges::copy_if(names, std::back_inserter(there),
                       [&](const std::string& name) { return fs::exists(name, ignored); });
  return there;
}

bool is_one_of(const std::string& file, const std::vector<std::string>& names) {
  std::error_code ignored;
  return std::ranges::any_of(
      names, [&](const std::string& name) { return fs::equivalent(file, name, ignored); });
}

[[noreturn]] void refuse_replacing(const std::string& input, const std::string& output) {
  throw ConfigError(fmt::format("--output {} would overwrite the input {}", output, input),
                    "name another output file");
}

// Returns the files, among those that are replaced, that earlier runs have left. `output` itself is
// one where the ends of its documents are beside it; else it may be a text.
std::vector<std::string> left_by_earlier_runs(std::vector<std::string> replaced,
                                              const std::string& output) {
  if (std::ranges::find(replaced, output + ".idx") == replaced.end()) std::erase(replaced, output);
  return replaced;
}

}  // namespace

void check_not_replaced(const std::string& input, const std::string& output) {
  if (is_one_of(input, names_there(token_file_names(output)))) refuse_replacing(input, output);
}

bool are_json_lines(const std::vector<std::string>& files) {
  if (files.empty()) return false;
  const bool is_first = holds_json_documents(files.front());
  const auto other = std::ranges::find_if(
      files, [&](const std::string& file) { return holds_json_documents(file) != is_first; });
  if (other == files.end()) return is_first;
  throw ConfigError(
      fmt::format("{} has documents of JSON, but {} is text", is_first ? files.front() : *other,
                  is_first ? *other : files.front()),
      "make a separate token file of each kind");
}

std::vector<std::string> list_text_files(const std::vector<std::string>& paths,
                                         const std::string& output) {
  const std::vector<std::string> replaced = names_there(token_file_names(output));
  const std::vector<std::string> left = left_by_earlier_runs(replaced, output);
  std::vector<std::string> texts;
  std::error_code ignored;
  for (const std::string& path : paths) {
    const bool is_directory = fs::is_directory(path, ignored);
    for (const std::string& file : list_data_files({path}, DataUse::kTokenize)) {
      if (is_directory && is_one_of(file, left)) continue;
      if (is_one_of(file, replaced)) refuse_replacing(file, output);
      texts.push_back(file);
    }
  }
  if (texts.empty()) {
    throw ConfigError(fmt::format("PATH {}: no texts except those that --output {} has left",
                                  fmt::join(paths, " "), output),
                      "name text files");
  }
  return texts;
}

}  // namespace terrace
