#include "runtime/data/data_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <span>
#include <system_error>

#include "base/error.h"
#include "runtime/data/json_texts.h"
#include "runtime/data/run_directories.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kNamesShown = 4;

constexpr auto kTokenEndings = std::to_array<std::string_view>(
    {".bin", ".raw", ".tok", ".tokens", ".ids", ".u16", ".u32", ".uint16", ".uint32", ".i32"});
constexpr auto kJsonlEndings = std::to_array<std::string_view>(
    {".jsonl", ".jsonl.gz", ".jsonl.zst", ".ndjson", ".ndjson.gz", ".ndjson.zst"});
constexpr auto kJsonParts = std::to_array<std::string_view>({".jsonl", ".ndjson"});
constexpr auto kJsonEndings = std::to_array<std::string_view>({".json", ".json.gz", ".json.zst"});
constexpr auto kValidationWords =
    std::to_array<std::string_view>({"val", "valid", "validation", "dev", "eval"});
constexpr auto kTestWords = std::to_array<std::string_view>({"test"});

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// Returns whether one of the words stands in a name in lower case, between characters that are not
// letters.
bool has_word(const std::string& name, std::span<const std::string_view> words) {
  std::string word;
  for (const char c : name + '.') {
    if (std::isalpha(static_cast<unsigned char>(c)) != 0) {
      word += c;
      continue;
    }
    if (std::ranges::find(words, word) != words.end()) return true;
    word.clear();
  }
  return false;
}

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

// Lists the files of a directory and of those below it, except run directories. A link counts as
// the file or directory that it leads to.
class DirectoryWalk {
 public:
  explicit DirectoryWalk(std::string_view flag) : flag_(flag) {}

  // Returns the files in byte order of their paths.
  std::vector<std::string> list(const std::string& directory) {
    visit(directory);
    std::sort(files_.begin(), files_.end());
    return std::move(files_);
  }

 private:
  void visit(const fs::path& directory) {
    std::error_code error;
    const fs::path place = fs::canonical(directory, error);
    if (error) fail(directory, error);
    if (std::ranges::find(above_, place) != above_.end()) {
      throw ConfigError(fmt::format("{} {}: this link leads to a directory that it lies in", flag_,
                                    directory.string()),
                        "remove the link, or name the files");
    }
    above_.push_back(place);
    fs::directory_iterator entry(directory, error);
    for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
      if (!is_hidden(entry->path())) add(entry->path());
    }
    if (error) fail(directory, error);
    above_.pop_back();
  }

  void add(const fs::path& path) {
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (fs::is_directory(status)) {
      if (!is_run_directory(path.string())) visit(path);
      return;
    }
    if (fs::is_regular_file(status)) return files_.push_back(path.string());
    if (fs::exists(status)) {
      throw ConfigError(fmt::format("{} {}: neither a file nor a directory", flag_, path.string()),
                        "move it out of the directory, or name the files");
    }
    if (!fs::is_symlink(fs::symlink_status(path, error))) fail(path, error);
    throw ConfigError(fmt::format("{} {}: this link leads to {}, which cannot be read", flag_,
                                  path.string(), fs::read_symlink(path, error).string()),
                      "repair or remove the link, or name the files");
  }

  [[noreturn]] static void fail(const fs::path& path, std::error_code error) {
    throw IoError({.operation = "list", .path = path.string(), .error_number = error.value()});
  }

  const std::string_view flag_;
  std::vector<fs::path> above_;  // directories that the walk is in, without links
  std::vector<std::string> files_;
};

std::string_view flag_of(DataUse use) {
  if (use == DataUse::kTokenize) return "PATH";
  return use == DataUse::kTraining ? "--data" : "--validation-data";
}

// Returns whether the path is a directory. Throws ConfigError where it is no file either.
bool is_directory(const std::string& path, std::string_view flag) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) return true;
  if (fs::is_regular_file(status)) return false;
  if (fs::exists(status)) {
    throw ConfigError(fmt::format("{} {}: neither a file nor a directory", flag, path),
                      "copy the data to a file");
  }
  throw ConfigError(fmt::format("{} {}: {}", flag, path, error ? error.message() : "not found"),
                    "check the path");
}

void refuse_run_directory(const std::string& path, std::string_view flag) {
  if (!is_run_directory(path)) return;
  throw ConfigError(
      fmt::format("{} {}: this is a run directory of terrace train, and its files are not data",
                  flag, path),
      "keep data and runs in separate directories, or name the data's files");
}

std::vector<std::string> files_of_directory(const std::string& path, std::string_view flag) {
  refuse_run_directory(path, flag);
  std::vector<std::string> found = DirectoryWalk(flag).list(path);
  if (found.empty()) {
    throw ConfigError(fmt::format("{} {}: no files in this directory", flag, path),
                      "hidden files and run directories are left out; to use them, name their "
                      "files");
  }
  return found;
}

void append(std::vector<std::string>& files, const std::vector<std::string>& more) {
  files.insert(files.end(), more.begin(), more.end());
}

// A kind of files that a directory may have besides others.
struct FileKind {
  const char* what;
  std::span<const std::string_view> endings;
};

constexpr FileKind kTokenFiles = {"token files", kTokenEndings};
constexpr FileKind kJsonlFiles = {"files of JSON lines", kJsonlEndings};

bool has_ending(const std::string& name, std::span<const std::string_view> endings) {
  return std::ranges::any_of(endings,
                             [&](std::string_view ending) { return name.ends_with(ending); });
}

// Returns whether a file has the ends of documents, or the mask, of a file that is taken.
bool is_beside_tokens(const std::string& name) {
  return std::ranges::any_of(kTokenEndings, [&](std::string_view ending) {
    return name.ends_with(std::string(ending) + ".idx") ||
           name.ends_with(std::string(ending) + ".mask");
  });
}

TokenFileNames sort_directory(const std::string& path, std::string_view flag,
                              const FileKind& kind) {
  TokenFileNames files;
  for (const std::string& file : files_of_directory(path, flag)) {
    const std::string name = lower(file.substr(std::min(path.size(), file.size())));
    if (is_beside_tokens(name)) continue;
    const bool is_wanted = has_ending(name, kind.endings);
    std::vector<std::string>& list = !is_wanted || has_word(name, kTestWords) ? files.left_out
                                     : has_word(name, kValidationWords)       ? files.validation
                                                                              : files.taken;
    list.push_back(file);
  }
  return files;
}

void check_any(const std::vector<std::string>& paths, std::string_view flag) {
  if (paths.empty())
    throw ConfigError(fmt::format("{} names no file", flag), "name at least one file");
}

}  // namespace

std::vector<std::string> list_data_files(const std::vector<std::string>& paths, DataUse use) {
  const std::string_view flag = flag_of(use);
  check_any(paths, flag);
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    if (is_directory(path, flag)) {
      append(files, files_of_directory(path, flag));
    } else {
      files.push_back(path);
    }
  }
  return files;
}

namespace {

TokenFileNames list_files(const std::vector<std::string>& paths, DataUse use,
                          const FileKind& kind) {
  const std::string_view flag = flag_of(use);
  check_any(paths, flag);
  TokenFileNames files;
  for (const std::string& path : paths) {
    if (!is_directory(path, flag)) {
      files.taken.push_back(path);
      continue;
    }
    TokenFileNames found = sort_directory(path, flag, kind);
    if (use == DataUse::kValidation && !found.validation.empty()) {
      append(found.left_out, found.taken);
      found.taken.clear();
      std::swap(found.taken, found.validation);
    }
    append(files.taken, found.taken);
    append(files.validation, found.validation);
    append(files.left_out, found.left_out);
  }
  if (files.taken.empty()) {
    append(files.left_out, files.validation);
    throw ConfigError(
        fmt::format("{} {}: found no {}, only {}", flag, fmt::join(paths, " "), kind.what,
                    some_names(files.left_out)),
        fmt::format("name the files themselves, or let the names of {} end in one of {}", kind.what,
                    fmt::join(kind.endings, " ")));
  }
  return files;
}

}  // namespace

TokenFileNames list_token_files(const std::vector<std::string>& paths, DataUse use) {
  return list_files(paths, use, kTokenFiles);
}

TokenFileNames list_jsonl_files(const std::vector<std::string>& paths, DataUse use) {
  return list_files(paths, use, kJsonlFiles);
}

bool holds_json_documents(const std::string& path) {
  if (is_jsonl_name(path)) return true;
  const std::string name = lower(fs::path(path).filename().string());
  const bool may_hold =
      has_ending(name, kJsonEndings) || std::ranges::any_of(kJsonParts, [&](std::string_view part) {
        return name.find(part) != std::string::npos;
      });
  if (!may_hold) return false;
  switch (json_layout_of_file(path)) {
    case JsonLayout::kLines:
    case JsonLayout::kArray:
      return true;
    case JsonLayout::kObject:
      throw ConfigError(
          fmt::format("{}: one JSON object on several lines, neither JSON lines nor an array",
                      path),
          fmt::format("write one document on each line, as `jq -c '.KEY[]' {} > FILE.jsonl` does "
                      "for a list under a key; or train on it unchanged: --data-format text",
                      path));
    case JsonLayout::kOther:
      break;
  }
  return false;
}

bool is_jsonl_name(const std::string& path) { return has_ending(lower(path), kJsonlEndings); }

std::string some_names(const std::vector<std::string>& files) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min(files.size(), kNamesShown); ++i) {
    names.push_back(fs::path(files[i]).filename().string());
  }
  if (files.size() <= kNamesShown) return fmt::format("{}", fmt::join(names, ", "));
  return fmt::format("{}, ... ({} files)", fmt::join(names, ", "), files.size());
}

}  // namespace terrace
