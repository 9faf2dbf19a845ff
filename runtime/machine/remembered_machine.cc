#include "runtime/machine/remembered_machine.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/host_name.h"
#include "offload/drive_record.h"
#include "runtime/machine/machine_toml.h"

namespace terrace {
namespace {

std::filesystem::path path_of_profile() {
  const std::string cache = user_cache_directory();
  if (cache.empty()) return {};
  return std::filesystem::path(cache) / ("machine-" + host_name() + ".toml");
}

}  // namespace

std::string remember_machine(const std::string& text) {
  const std::filesystem::path path = path_of_profile();
  if (path.empty()) return "";
  std::error_code ignored;
  std::filesystem::create_directories(path.parent_path(), ignored);
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  return file.good() ? path.string() : std::string();
}

std::optional<Machine> remembered_machine() {
  const std::filesystem::path path = path_of_profile();
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open()) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return parse_machine(text.str(), path.string());
}

}  // namespace terrace
