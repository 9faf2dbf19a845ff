#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>

#include "tests/tidy/source_tree.h"

namespace terrace::tidy {
namespace {

// The headers that the object library terrace_headers_alone compiles, one source each.
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

TEST(HeadersAlone, EveryHeaderOfTheLibraryIsCompiledAlone) {
  const std::set<std::string> compiled = compiled_alone();
  ASSERT_FALSE(compiled.empty());
  for (const SourceFile& file : read_source_tree()) {
    if (!is_library_header(file.path) || needs_cuda(file.path)) continue;
    EXPECT_TRUE(compiled.contains(file.path))
        << file.path << " is not compiled alone; configure the build again";
  }
}

}  // namespace
}  // namespace terrace::tidy
