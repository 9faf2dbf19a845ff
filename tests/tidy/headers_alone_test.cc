#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "tests/tidy/source_tree.h"

namespace terrace::tidy {
namespace {

// Returns the headers that the object library terrace_headers_alone compiles, each in a source of
// its own.
std::set<std::string> compiled_alone() {
  std::ifstream in(TERRACE_HEADERS_ALONE_LIST);
  std::set<std::string> headers;
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) headers.insert(line);
  }
  return headers;
}

bool needs_cuda(const std::string& path) {
  return path.find("/cuda/") != std::string::npos || path.find("/nccl/") != std::string::npos;
}

bool is_library_header(const std::string& path) {
  return is_cpp_header(path) && !path.starts_with("tests/") && !path.starts_with("bench/") &&
         !path.starts_with("examples/") && !path.starts_with("tools/");
}

std::string first_include(const std::string& text) {
  const std::size_t begin = text.find("#include");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find('\n', begin) - begin);
}

// Returns the headers that a source of the same name includes before anything else.
std::set<std::string> included_first(const std::vector<SourceFile>& files) {
  std::set<std::string> headers;
  for (const SourceFile& file : files) {
    if (!file.path.ends_with(".cc")) continue;
    const std::string header = file.path.substr(0, file.path.size() - 2) + "h";
    if (first_include(file.text) == "#include \"" + header + "\"") headers.insert(header);
  }
  return headers;
}

TEST(HeadersAlone, EveryHeaderOfTheLibraryIsCompiledAloneOrFirst) {
  const std::set<std::string> compiled = compiled_alone();
  ASSERT_FALSE(compiled.empty());
  const std::vector<SourceFile> files = read_source_tree();
  const std::set<std::string> first = included_first(files);
  for (const SourceFile& file : files) {
    if (!is_library_header(file.path) || needs_cuda(file.path)) continue;
    EXPECT_TRUE(compiled.contains(file.path) != first.contains(file.path))
        << file.path << " must be compiled alone, or first in its source, and not both; configure "
        << "the build again";
  }
}

}  // namespace
}  // namespace terrace::tidy
