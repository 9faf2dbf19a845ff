#include "tests/tidy/source_rules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "tests/tidy/source_tree.h"

namespace terrace::tidy {
namespace {

// Counts the violations that mention the words.
std::size_t count(const Violations& found, std::string_view words) {
  return static_cast<std::size_t>(std::count_if(
      found.begin(), found.end(),
      [&](const Violation& violation) { return violation.what.find(words) != std::string::npos; }));
}

std::size_t count(std::string_view path, std::string_view text, std::string_view words) {
  return count(check_source(path, text), words);
}

std::string repeat(std::string_view line, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += line;
  return out;
}

std::string function_of(int lines) {
  return "void f() {\n" + repeat("  g();\n", lines - 2) + "}\n";
}

TEST(SourceRules, CleanTextHasNone) {
  EXPECT_TRUE(check_source("base/a.h", "#pragma once\n\nint f();\n").empty());
  EXPECT_TRUE(check_source("base/a.cc", function_of(70)).empty());
}

TEST(SourceRules, LongFunctions) {
  EXPECT_EQ(count("base/a.cc", function_of(71), "71 lines"), 1U);
  EXPECT_EQ(count("kernels/cuda/a.cu", function_of(71), "71 lines"), 1U);
}

TEST(SourceRules, LongFiles) {
  EXPECT_EQ(count("base/a.cc", repeat("int x;\n", 600), "are allowed"), 0U);
  EXPECT_EQ(count("base/a.cc", repeat("int x;\n", 601), "601 lines"), 1U);
  EXPECT_EQ(count("kernels/cuda/a.cuh", repeat("int x;\n", 601), "601 lines"), 1U);
}

TEST(SourceRules, LongLines) {
  EXPECT_EQ(count("base/a.cc", std::string(100, 'x') + "\n", "columns"), 0U);
  EXPECT_EQ(count("base/a.cc", std::string(101, 'x') + "\n", "101 columns"), 1U);
}

TEST(SourceRules, UnfinishedWork) {
  const std::string marker = std::string("TO") + "DO";
  EXPECT_EQ(count("base/a.cc", "// " + marker + ": later\n", "finish it"), 1U);
  EXPECT_EQ(count("tools/a.sh", "# " + marker + "\n", "finish it"), 1U);
  EXPECT_EQ(count("base/a.cc", std::string("// Good enough for ") + "now.\n", "finish it"), 1U);
  EXPECT_EQ(count("base/a.cc", std::string("throw E(\"Not imple") + "mented\");\n", "finish it"),
            1U);
  EXPECT_EQ(count("base/a.cc", "int todos_of(\"/tmp/a.XXXXXX\");\n", "finish it"), 0U);
}

TEST(SourceRules, OnlyPrintableAscii) {
  EXPECT_EQ(count("base/a.cc", "// caf\xc3\xa9\n", "ASCII"), 1U);
  EXPECT_EQ(count("base/a.cc", "\tint x;\n", "ASCII"), 1U);
  EXPECT_EQ(count("base/a.cc", "int x;\r\n", "ASCII"), 1U);
}

TEST(SourceRules, HeadersBeginWithPragmaOnce) {
  EXPECT_EQ(count("base/a.h", "// Purpose.\n#pragma once\n", "#pragma once"), 0U);
  EXPECT_EQ(count("base/a.h", "#include <vector>\n#pragma once\n", "#pragma once"), 1U);
  EXPECT_EQ(count("base/a.h", "#ifndef A_H\n#define A_H\n#endif\n", "#pragma once"), 1U);
  EXPECT_EQ(count("base/a.h", "", "#pragma once"), 1U);
}

TEST(SourceRules, FewParameters) {
  const char* const what = "make a struct";
  EXPECT_EQ(count("base/a.h", "#pragma once\nint f(int, int, int, int, int);\n", what), 0U);
  EXPECT_EQ(count("base/a.h", "#pragma once\nint f(int, int, int, int, int, int);\n", what), 1U);
  EXPECT_EQ(count("kernels/a.cu", "__global__ void f(A, B, C, D, E, F) {}\n", what), 1U);
  EXPECT_EQ(count("base/a.cc", "void* mmap(A, B, C, D, E, F) {}\n", what), 1U);
  EXPECT_EQ(count("tests/runtime/engine/step_allocation_test.cc",
                  "void* mmap(A, B, C, D, E, F) {}\nint f(A, B, C, D, E, F) {}\n", what),
            1U);
}

TEST(SourceRules, NoAssert) {
  EXPECT_EQ(count("base/a.cc", "assert(x);\n", "assert"), 1U);
  EXPECT_EQ(count("base/a.cc", "static_assert(x);\n// assert(x)\nf(\"assert(x)\");\n", "assert"),
            0U);
}

TEST(SourceRules, LibrariesDoNotPrint) {
  EXPECT_EQ(count("memory/a.cc", "std::cout << x;\n", "never print"), 1U);
  EXPECT_EQ(count("memory/a.cc", "std::printf(\"x\");\n", "never print"), 1U);
  EXPECT_EQ(count("memory/a.cc", "std::fprintf(stderr, \"x\");\n", "never print"), 2U);
  EXPECT_EQ(count("memory/a.cc", "fmt::print(\"x\");\n", "never print"), 1U);
  EXPECT_EQ(count("memory/a.cc", "std::snprintf(b, n, \"x\"); // printf(\n", "never print"), 0U);
  EXPECT_EQ(count("runtime/cli/a.cc", "std::cout << x;\n", "never print"), 0U);
  EXPECT_EQ(count("runtime/train/a.cc", "std::cout << x;\n", "never print"), 1U);
  EXPECT_EQ(count("tests/memory/a_test.cc", "std::fprintf(stderr, \"x\");\n", "never print"), 0U);
  EXPECT_EQ(count("base/check.cc", "std::fprintf(stderr, \"x\");\n", "never print"), 0U);
}

TEST(SourceRules, WhatOthersEmbedNamesNoFlags) {
  const char* const what = "names a flag";
  EXPECT_EQ(count("runtime/plan/a.cc", "f();\ng(\"raise --threads\");\n", what), 1U);
  EXPECT_EQ(count("runtime/engine/a.h", "#pragma once\nf(\"--a\" \"and --b\");\n", what), 2U);
  EXPECT_EQ(count("runtime/step/a.cc", "--left;  // --threads\nf(\"a -- b\");\n", what), 0U);
  EXPECT_EQ(count("runtime/train/a.cc", "g(\"raise --threads\");\n", what), 0U);
}

TEST(SourceRules, FilesEndWithANewline) {
  EXPECT_EQ(count("base/a.cc", "int x;", "newline"), 1U);
  EXPECT_EQ(count("base/a.cc", "int x;\n", "newline"), 0U);
}

TEST(SourceRules, NamesSaySomething) {
  EXPECT_TRUE(check_names({"base", "runtime/step"}, {"base/a_b2.h"}).empty());
  EXPECT_EQ(count(check_names({"runtime/utils"}, {}), "says nothing"), 1U);
  EXPECT_EQ(count(check_names({"base"}, {"base/common.h"}), "says nothing"), 1U);
  EXPECT_EQ(count(check_names({}, {"base/FooBar.h"}), "snake_case"), 1U);
  EXPECT_EQ(count(check_names({}, {"base/foo-bar.h"}), "snake_case"), 1U);
}

TEST(SourceRules, TheTreeKeepsThem) {
  const std::vector<SourceFile> files = read_source_tree();
  Violations found;
  std::vector<std::string> cpp;
  for (const SourceFile& file : files) {
    if (is_cpp(file.path)) cpp.push_back(file.path);
    for (Violation& violation : check_source(file.path, file.text)) {
      found.push_back(std::move(violation));
    }
  }
  for (Violation& violation : check_names(source_folders(files), cpp)) {
    found.push_back(std::move(violation));
  }
  EXPECT_TRUE(found.empty()) << describe(found);
}

}  // namespace
}  // namespace terrace::tidy
