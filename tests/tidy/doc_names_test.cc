#include "tests/tidy/doc_names.h"

#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <string>
#include <string_view>

namespace terrace::tidy {
namespace {

// Counts the violations of a page in docs/ beside a tree of two files.
std::size_t unknown_names(std::string_view text) {
  const std::string declared = R"(Flag kFlags[] = {{"host-memory"}};)";
  const KnownNames names({{"base/error.h", "class OutOfMemory; int free_bytes();"},
                          {"tools/test.sh", "usage --all"},
                          {"runtime/flags.cc", declared}});
  return check_names_of_document({"docs/page.md", std::string(text)}, names,
                                 [](const std::string& path) {
                                   return path == "base/error.h" || path == "docs/there.md";
                                 })
      .size();
}

TEST(DocNames, NamesThatTheSourcesKnow) {
  EXPECT_EQ(
      unknown_names("`OutOfMemory`, `free_bytes()`, `x = free_bytes(1)`, `free_*` and `*_bytes`"),
      0U);
  EXPECT_EQ(unknown_names("`--all`, `terrace train --host-memory 3GiB`"), 0U);
  EXPECT_EQ(unknown_names("`base/error.h`, `error.h`, `there.md`, `tests/NAME_test.cc`"), 0U);
  EXPECT_EQ(unknown_names("plain words with `one`, `Word` or `A`, `GPU` and `bf16`"), 0U);
}

TEST(DocNames, NamesThatNothingKnows) {
  EXPECT_EQ(unknown_names("`OutOfDisk`"), 1U);
  EXPECT_EQ(unknown_names("`used_bytes()` and `free_pages`, `gone_*`"), 3U);
  EXPECT_EQ(unknown_names("`terrace train --host-memroy 3GiB`"), 1U);
  EXPECT_EQ(unknown_names("`base/gone.h` and `gone.cc`"), 2U);
  EXPECT_EQ(unknown_names("| a | `--gone` |"), 1U);
}

TEST(DocNames, CodeBlocksAreLeftOut) {
  EXPECT_EQ(unknown_names("```\n`used_bytes()`\n```\n    `free_pages`\n"), 0U);
}

// Names of other projects and of machines, which no source of ours has.
bool is_from_elsewhere(const Violation& violation) {
  constexpr auto kElsewhere = std::to_array<std::string_view>(
      {"'CMAKE_BUILD_PARALLEL_LEVEL'", "'CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT'", "'OneCycleLR'",
       "'PR_SET_PTRACER'", "'PascalCase'", "'ReadWriteMany'", "'backoffLimit'",
       "'ip_local_port_range'", "'linux_x86_64'", "'manylinux_2_35_x86_64'", "'no-python'"});
  return std::any_of(kElsewhere.begin(), kElsewhere.end(), [&](std::string_view name) {
    return violation.what.find(name) != std::string::npos;
  });
}

// Rows of recorded results keep the names that they were written with.
bool is_of_record(const SourceFile& document) { return document.path == "docs/gpu-record.md"; }

TEST(DocNames, TheTreeKeepsIt) {
  std::vector<SourceFile> sources = read_source_tree();
  for (const std::string_view ending : {".py", ".c", ".json"}) {
    for (SourceFile& file : read_files(ending)) {
      // Recorded results keep flags and names that may be gone.
      if (!file.path.starts_with("bench/results/")) sources.push_back(std::move(file));
    }
  }
  const KnownNames names(sources);
  const std::filesystem::path root = TERRACE_SOURCE_DIR;
  const auto exists = [&](const std::string& path) { return std::filesystem::exists(root / path); };
  Violations found;
  for (const SourceFile& document : read_files(".md")) {
    if (is_of_record(document)) continue;
    for (Violation& violation : check_names_of_document(document, names, exists)) {
      if (!is_from_elsewhere(violation)) found.push_back(std::move(violation));
    }
  }
  EXPECT_TRUE(found.empty()) << describe(found);
}

}  // namespace
}  // namespace terrace::tidy
