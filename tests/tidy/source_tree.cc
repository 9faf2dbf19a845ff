#include "tests/tidy/source_tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <stdexcept>
#include <string_view>

namespace terrace::tidy {
namespace {

namespace fs = std::filesystem;

constexpr auto kRoots = std::to_array<std::string_view>(
    {".ci", "base", "bench", "cmake", "examples", "kernels", "memory", "offload", "optim",
     "parallel", "runtime", "tests", "tools"});

bool is_script(const std::string& path) {
  return path.ends_with(".sh") || path.ends_with(".cmake") || path.ends_with("CMakeLists.txt") ||
         path == ".ci/run";
}

std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in) throw std::runtime_error(fmt::format("cannot read {}", path.string()));
  return text;
}

// Returns whether a folder is in the checkout but does not belong to the tree.
bool is_left_out(const fs::path& folder) {
  const std::string name = folder.filename().string();
  return name.starts_with('.') || name == "build" || name == "runs";
}

void sort_by_path(std::vector<SourceFile>& files) {
  std::sort(files.begin(), files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
}

}  // namespace

bool is_cpp_header(const std::string& path) { return path.ends_with(".h"); }

bool is_cpp(const std::string& path) {
  return is_cpp_header(path) || path.ends_with(".cc") || path.ends_with(".cu") ||
         path.ends_with(".cuh");
}

std::vector<SourceFile> read_source_tree() {
  const fs::path root = TERRACE_SOURCE_DIR;
  std::vector<SourceFile> files;
  for (const std::string_view name : kRoots) {
    if (!fs::is_directory(root / name)) continue;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / name)) {
      const std::string path = entry.path().lexically_relative(root).generic_string();
      if (!entry.is_regular_file() || (!is_cpp(path) && !is_script(path))) continue;
      files.push_back({path, read_text(entry.path())});
    }
  }
  if (files.empty()) throw std::runtime_error(fmt::format("no sources in {}", root.string()));
  sort_by_path(files);
  return files;
}

std::vector<SourceFile> read_files(std::string_view ending) {
  const fs::path root = TERRACE_SOURCE_DIR;
  std::vector<SourceFile> files;
  for (auto it = fs::recursive_directory_iterator(root); it != fs::end(it); ++it) {
    if (it->is_directory() && is_left_out(it->path())) it.disable_recursion_pending();
    const std::string path = it->path().lexically_relative(root).generic_string();
    if (it->is_regular_file() && path.ends_with(ending)) files.push_back({path, read_text(*it)});
  }
  sort_by_path(files);
  return files;
}

std::vector<std::string> source_folders(const std::vector<SourceFile>& files) {
  std::set<std::string> folders;
  for (const SourceFile& file : files) {
    for (fs::path at = fs::path(file.path).parent_path(); !at.empty(); at = at.parent_path()) {
      folders.insert(at.generic_string());
    }
  }
  return {folders.begin(), folders.end()};
}

std::string describe(const Violations& violations) {
  std::string out = fmt::format("{} violations\n", violations.size());
  for (const Violation& violation : violations) {
    out += fmt::format("{}:{}: {}\n", violation.path, violation.line, violation.what);
  }
  return out;
}

}  // namespace terrace::tidy
