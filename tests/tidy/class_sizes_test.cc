#include "tests/tidy/class_sizes.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>

#include "tests/tidy/source_tree.h"

namespace terrace::tidy {
namespace {

std::string output_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), &pclose);
  std::string output;
  for (int c = std::fgetc(pipe.get()); c != EOF; c = std::fgetc(pipe.get())) {
    output.push_back(static_cast<char>(c));
  }
  return output;
}

TEST(ClassSizes, AreCountedByNameAndKind) {
  const std::vector<ClassSize> classes = count_classes(
      "member\tclass\tterrace::A\tx_\n"
      "member\tclass\tterrace::A\ty_\n"
      "prototype\tclass\tterrace::A\trun\n"
      "function\tclass\tterrace::A\trun\n"
      "function\tnamespace\tterrace\tfree\n"
      "member\tstruct\tterrace::B\tz\n");
  ASSERT_EQ(classes.size(), 2U);
  EXPECT_EQ(classes[0].name, "terrace::A");
  EXPECT_EQ(classes[0].members, 2);
  EXPECT_EQ(classes[0].methods, 1);
  EXPECT_EQ(classes[1].members, 1);
  EXPECT_EQ(classes[1].methods, 0);
}

TEST(ClassSizes, HaveLimitsForAllButData) {
  EXPECT_TRUE(check_class_sizes({{"A", 16, 30}, {"Data", 40, 0}}).empty());
  EXPECT_EQ(check_class_sizes({{"A", 17, 1}}).size(), 1U);
  EXPECT_EQ(check_class_sizes({{"A", 17, 31}}).size(), 2U);
}

// The parts of a step, of its planning and of its execution stay small enough to be read at once.
TEST(ClassSizes, TheEngineRoomKeepsThem) {
  if (output_of("ctags --version 2>&1").find("Universal Ctags") == std::string::npos) {
    GTEST_SKIP() << "Universal Ctags is not installed: tools/install-deps.sh installs it";
  }
  std::string files;
  for (const SourceFile& file : read_source_tree()) {
    const bool is_in_room = file.path.starts_with("runtime/step/") ||
                            file.path.starts_with("runtime/plan/") ||
                            file.path.starts_with("runtime/engine/");
    if (is_in_room && is_cpp(file.path)) files += " " + file.path;
  }
  const std::string root = TERRACE_SOURCE_DIR;
  const std::vector<ClassSize> classes = count_classes(
      output_of("cd '" + root + "' && ctags " + std::string(kCtagsArguments) + files));
  EXPECT_GT(classes.size(), 100U);
  const Violations found = check_class_sizes(classes);
  EXPECT_TRUE(found.empty()) << describe(found);
}

}  // namespace
}  // namespace terrace::tidy
