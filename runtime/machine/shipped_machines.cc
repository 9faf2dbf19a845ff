#include "runtime/machine/shipped_machines.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "runtime/machine/machine_toml.h"
#include "runtime/machine/shipped_machine_texts.h"

namespace terrace {
namespace {

std::string read_profile(const std::string& path) {
  errno = 0;
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  if (!stream.is_open() || stream.bad() || std::filesystem::is_directory(path)) {
    throw ConfigError(fmt::format("--profile {}: the file cannot be read", path),
                      fmt::format("measure this machine with terrace profile FILE, or name one of "
                                  "{}",
                                  fmt::join(shipped_machine_names(), ", ")));
  }
  return text.str();
}

}  // namespace

std::vector<std::string> shipped_machine_names() {
  std::vector<std::string> names;
  for (const std::string_view text : shipped_machine_texts()) {
    names.push_back(parse_machine(std::string(text), "a shipped profile").name);
  }
  std::ranges::sort(names);
  return names;
}

Machine shipped_machine(std::string_view name) {
  for (const std::string_view text : shipped_machine_texts()) {
    Machine machine = parse_machine(std::string(text), "a shipped profile");
    if (machine.name == name) return machine;
  }
  throw ConfigError(fmt::format("no machine is called {}", name),
                    fmt::format("name one of {}, or a file that terrace profile has written",
                                fmt::join(shipped_machine_names(), ", ")));
}

Machine find_machine(const std::string& name_or_file) {
  const bool is_file =
      name_or_file.find('/') != std::string::npos || name_or_file.ends_with(".toml");
  if (!is_file) return shipped_machine(name_or_file);
  return parse_machine(read_profile(name_or_file), name_or_file);
}

}  // namespace terrace
