#include "tests/tidy/class_sizes.h"

#include <fmt/format.h>

#include <map>
#include <set>

namespace terrace::tidy {
namespace {

constexpr int kMostMembers = 16;
constexpr int kMostMethods = 30;
constexpr std::string_view kPublicFace = "terrace::TierRuntime";

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(at);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

struct Found {
  int members = 0;
  std::set<std::string_view> methods;
};

}  // namespace

std::vector<ClassSize> count_classes(std::string_view ctags_output) {
  std::map<std::string_view, Found> found;
  for (const std::string_view line : split(ctags_output, '\n')) {
    const std::vector<std::string_view> fields = split(line, '\t');
    if (fields.size() != 4 || (fields[1] != "class" && fields[1] != "struct")) continue;
    Found& of = found[fields[2]];
    if (fields[0] == "member") ++of.members;
    if (fields[0] == "prototype" || fields[0] == "function") of.methods.insert(fields[3]);
  }
  std::vector<ClassSize> classes;
  for (const auto& [name, of] : found) {
    classes.push_back({std::string(name), of.members, static_cast<int>(of.methods.size())});
  }
  return classes;
}

Violations check_class_sizes(const std::vector<ClassSize>& classes) {
  Violations violations;
  for (const ClassSize& of : classes) {
    if (of.name == kPublicFace || of.methods == 0) continue;
    if (of.members > kMostMembers) {
      violations.push_back(
          {of.name, 0, fmt::format("has {} members; {} are allowed", of.members, kMostMembers)});
    }
    if (of.methods > kMostMethods) {
      violations.push_back(
          {of.name, 0, fmt::format("has {} methods; {} are allowed", of.methods, kMostMethods)});
    }
  }
  return violations;
}

}  // namespace terrace::tidy
