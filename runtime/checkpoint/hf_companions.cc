#include "runtime/checkpoint/hf_companions.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "base/bytes.h"
#include "base/error.h"
#include "base/lfs_pointer.h"
#include "runtime/checkpoint/durable_file.h"
#include "runtime/checkpoint/file_system.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

// The largest known tokenizers take half of this.
constexpr std::uintmax_t kCompanionBytesMax = 64 * kMiB;
constexpr const char* kTemplateFolder = "additional_chat_templates";

// Patterns for names, in lower case. With a dot in front, a pattern is the end of a name, else its
// beginning.
constexpr auto kAboutModel =
    std::to_array<std::string_view>({"license", "licence", "copying", "notice", "use_policy",
                                     "readme", "model_card", "citation", ".py"});
constexpr auto kAboutIds = std::to_array<std::string_view>(
    {"tokenizer", "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt",
     "merges.txt", "chat_template", "generation_config.json", ".model", ".tiktoken", ".jinja"});

bool is_like(std::string_view name, std::span<const std::string_view> patterns) {
  std::string low(name);
  std::ranges::transform(low, low.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::ranges::any_of(patterns, [&](std::string_view pattern) {
    return pattern.starts_with('.') ? low.ends_with(pattern) : low.starts_with(pattern);
  });
}

// Reads the companions of one directory.
class Companions {
 public:
  Companions(fs::path directory, CompanionScope scope, Log& log)
      : directory_(std::move(directory)),
        takes_ids_(scope != CompanionScope::kWithoutTokenizer),
        takes_model_(scope != CompanionScope::kTokenizer),
        log_(log) {}

  std::vector<HfCompanion> read() {
    for (const std::string& name : names_in(directory_)) {
      const bool is_taken =
          (takes_model_ && is_like(name, kAboutModel)) || (takes_ids_ && is_like(name, kAboutIds));
      if (is_taken) add(name);
    }
    if (!takes_ids_) return std::move(found_);
    for (const std::string& name : names_in(directory_ / kTemplateFolder)) {
      if (name.ends_with(".jinja")) add(fmt::format("{}/{}", kTemplateFolder, name));
    }
    return std::move(found_);
  }

 private:
  // Returns the names in a directory, sorted, without hidden ones. None where there is no such
  // directory.
  std::vector<std::string> names_in(const fs::path& directory) const {
    std::vector<std::string> names;
    std::error_code error;
    for (fs::directory_iterator entry(directory, error);
         !error && entry != fs::directory_iterator(); entry.increment(error)) {
      const std::string name = entry->path().filename().string();
      if (!name.starts_with('.')) names.push_back(name);
    }
    std::ranges::sort(names);
    return names;
  }

  void add(const std::string& name) {
    const fs::path path = directory_ / name;
    std::error_code error;
    if (!fs::is_regular_file(path, error)) return leave_out(path, "is not a file");
    if (fs::file_size(path, error) > kCompanionBytesMax) {
      return leave_out(path, fmt::format("is larger than {}", format_size(kCompanionBytesMax)));
    }
    try {
      std::string content = read_whole_file(system_files(), path.string());
      if (content.starts_with(kLfsPointerBegin)) {
        return leave_out(path, fmt::format("is {}", kLfsPointerKind));
      }
      found_.push_back({name, std::move(content)});
    } catch (const IoError& problem) {
      log_.warning(fmt::format("{}: the result will not contain it", problem.what()));
    }
  }

  void leave_out(const fs::path& path, const std::string& why) {
    log_.warning(fmt::format("{} {}: the result will not contain it", path.string(), why));
  }

  fs::path directory_;
  bool takes_ids_;
  bool takes_model_;
  Log& log_;
  std::vector<HfCompanion> found_;
};

}  // namespace

std::vector<HfCompanion> read_hf_companions(const std::string& directory, CompanionScope scope,
                                            Log& log) {
  std::error_code ignored;
  if (!fs::exists(fs::path(directory) / "config.json", ignored)) return {};
  return Companions(directory, scope, log).read();
}

void write_companions(const std::string& directory, const std::vector<HfCompanion>& companions) {
  for (const HfCompanion& companion : companions) {
    const fs::path path = fs::path(directory) / companion.name;
    make_directories(path.parent_path().string());
    write_durable_file(path.string(), companion.content);
  }
}

}  // namespace terrace
