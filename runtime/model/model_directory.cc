#include "runtime/model/model_directory.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/hub_cache.h"
#include "base/nearest_name.h"
#include "runtime/model/model_config.h"
#include "runtime/model/model_presets.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigFile = "config.json";
constexpr const char* kGgufRemedy =
    "name the Hugging Face directory that the model was converted from, with config.json and "
    "safetensors";

// Returns the name on the hub that a text is: "meta-llama/Llama-3.2-1B", two names of characters
// that the hub allows, also as an address. Empty for any other text.
std::string hub_name_of(std::string_view text) {
  for (const std::string_view site : {"https://huggingface.co/", "huggingface.co/", "hf://"}) {
    if (text.starts_with(site)) text.remove_prefix(site.size());
  }
  const std::size_t slash = text.find('/');
  const auto is_name = [](std::string_view part) {
    return !part.empty() && part.front() != '.' && part.front() != '~' &&
           std::ranges::all_of(part, [](unsigned char c) {
             return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
           });
  };
  const bool is_hub_name = slash != std::string_view::npos && is_name(text.substr(0, slash)) &&
                           is_name(text.substr(slash + 1));
  return is_hub_name ? std::string(text) : "";
}

ConfigError not_downloaded(const std::string& path, const std::string& hub_name) {
  const std::string cached = find_in_hub_cache(hub_name);
  return {
      fmt::format("model {}: there is no such directory, and nothing is downloaded", path),
      cached.empty()
          ? fmt::format("if it is a model of the Hugging Face hub, download it (for example with "
                        "hf download {} --local-dir DIR) and give --model DIR",
                        hub_name)
          : fmt::format("the hub's cache has a model of this name: give --model {}", cached)};
}

bool has_config(const fs::path& directory) {
  std::error_code ignored;
  return fs::exists(directory / kConfigFile, ignored);
}

// Returns whether a directory has a model or an adapter.
bool is_model(const fs::path& directory) {
  std::error_code ignored;
  return has_config(directory) || fs::exists(directory / "adapter_config.json", ignored);
}

// Returns the path of the directory beside `path` whose name is nearest to its name; empty if no
// name is near.
std::string near_directory(const fs::path& path) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator entry(path.parent_path(), error);
       !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_directory(ignored)) names.push_back(entry->path().filename().string());
  }
  const std::vector<std::string_view> views(names.begin(), names.end());
  const std::string name = path.filename().string();
  const std::string nearest = nearest_name(name, views);
  if (nearest.empty() || 3 * edit_distance(name, nearest) > nearest.size() + 2) return "";
  return (path.parent_path() / nearest).string();
}

// Returns the directories in a directory that have a config.json, and that are of the hub's cache.
std::vector<std::string> models_in(const std::string& directory) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    const bool is_cached = entry->path().filename().string().starts_with("models--");
    if (is_cached || has_config(entry->path())) found.push_back(entry->path().string());
  }
  std::ranges::sort(found);
  return found;
}

bool has_gguf(const std::string& directory) {
  std::error_code error;
  for (fs::directory_iterator entry(directory, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    if (entry->path().extension() == ".gguf") return true;
  }
  return false;
}

}  // namespace

std::string directory_of_model(const std::string& path) {
  std::error_code ignored;
  const fs::path result = fs::path(path) / "final";
  if (!is_model(path) && is_model(result)) return result.string();
  if (!fs::is_regular_file(path, ignored) || !preset_json(path).empty()) return hub_snapshot(path);
  if (path.ends_with(".gguf")) throw ConfigError(path + ": GGUF is not read", kGgufRemedy);
  const fs::path parent = fs::path(path).parent_path();
  throw ConfigError(path + " is a file, not the directory of a model",
                    fmt::format("name the directory that the file is in: {}",
                                parent.empty() ? "." : parent.string()));
}

ConfigError absent_model_error(const std::string& path) {
  std::error_code ignored;
  if (fs::path(path).has_parent_path() && fs::is_directory(fs::path(path).parent_path(), ignored)) {
    const std::string near = near_directory(path);
    return {fmt::format("model {}: there is no such directory", path),
            near.empty() ? "name a Hugging Face model directory, or the directory of a run"
                         : fmt::format("did you mean {}?", near)};
  }
  if (const std::string name = hub_name_of(path); !name.empty()) return not_downloaded(path, name);
  if (path.starts_with("~")) {
    return {fmt::format("model {}: there is no directory ~ here; a shell replaces it only at the "
                        "beginning of a word",
                        path),
            "write $HOME in its place"};
  }
  if (path.find('/') != std::string::npos) {
    return {fmt::format("model {}: there is no such directory", path),
            "name a Hugging Face model directory, with config.json and safetensors"};
  }
  const std::vector<std::string_view> names(preset_names().begin(), preset_names().end());
  const std::string nearest = nearest_name(path, names);
  const bool is_close = 3 * edit_distance(path, nearest) <= 2 * nearest.size();
  return {fmt::format("model {}: neither a directory with a config.json nor a preset", path),
          fmt::format("{}Presets: {}", is_close ? fmt::format("did you mean {}? ", nearest) : "",
                      fmt::join(names, ", "))};
}

ConfigError no_config_error(const std::string& directory) {
  constexpr std::size_t kShown = 8;
  std::vector<std::string> models = models_in(directory);
  std::string remedy = "--model takes a Hugging Face model directory or a preset";
  if (!models.empty()) {
    const bool is_cut = models.size() > kShown;
    models.resize(std::min(models.size(), kShown));
    remedy = fmt::format("name a directory in it that has one: {}{}", fmt::join(models, ", "),
                         is_cut ? ", ..." : "");
  } else if (has_gguf(directory)) {
    remedy = fmt::format("GGUF is not read: {}", kGgufRemedy);
  }
  return {fmt::format("{}: no config.json in this directory", directory), remedy};
}

}  // namespace terrace
