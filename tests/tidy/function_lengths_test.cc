#include "tests/tidy/function_lengths.h"

#include <gtest/gtest.h>

#include <string>

namespace terrace::tidy {
namespace {

using Extents = std::vector<FunctionExtent>;

TEST(FunctionLengths, FindsFunctionsInsideScopes) {
  const Extents found = function_extents(R"(namespace a {
int f(int x) { return x; }

class C {
 public:
  C() = default;
  int g() const {
    if (x_) {
      return 1;
    }
    return 2;
  }

 private:
  int x_{};
};
}  // namespace a
)");
  EXPECT_EQ(found, (Extents{{2, 2}, {7, 12}}));
}

TEST(FunctionLengths, CountsFromTheTemplateAndTheWrappedSignature) {
  const Extents found = function_extents(R"(// A comment.
template <typename T = int>
T wrapped(T a,
          T b) {
  return a + b;
}
)");
  EXPECT_EQ(found, (Extents{{2, 6}}));
}

TEST(FunctionLengths, SkipsInitialisersAndEnums) {
  const Extents found = function_extents(R"(enum class E { kA, kB };
constexpr int kTable[] = {
    f(1),
    f(2),
};
const std::map<int, int> kMap = make({{1, 2}});
struct P {
  int x = 1;
  std::vector<int> v{1, 2};
};
int after() {
  return 0;
}
)");
  EXPECT_EQ(found, (Extents{{11, 13}}));
}

TEST(FunctionLengths, ConstructorsWithBracedMembersAreOneFunction) {
  const Extents found = function_extents(R"(C::C(int a)
    : a_{a},
      b_{1, 2},
      c_(3) {
  run();
}

int next() { return 1; }
)");
  EXPECT_EQ(found, (Extents{{1, 6}, {8, 8}}));
}

TEST(FunctionLengths, LambdasBelongToTheirFunction) {
  const Extents found = function_extents(R"(void f() {
  auto g = [](int x) {
    return x;
  };
  struct Local {
    void h() {}
  };
}
const auto kOuter = [](int x) {
  return x;
};
)");
  EXPECT_EQ(found, (Extents{{1, 8}, {9, 11}}));
}

TEST(FunctionLengths, OperatorsAreFunctions) {
  const Extents found = function_extents(R"(bool operator==(const A& a, const A& b) {
  return a.x == b.x;
}
A& operator=(const A& a) {
  return *this;
}
)");
  EXPECT_EQ(found, (Extents{{1, 3}, {4, 6}}));
}

TEST(FunctionLengths, BracesInTextAndMacrosDoNotCount) {
  const Extents found = function_extents(R"(#define OPEN { \
  {
void f() {
  g("}}}", '{');  // }
}
void h() {}
)");
  EXPECT_EQ(found, (Extents{{3, 5}, {6, 6}}));
}

TEST(FunctionLengths, TestsAndStructReturnsAreFunctions) {
  const Extents found = function_extents(R"(TEST(A, B) {
  EXPECT_TRUE(true);
}
struct stat ask(int fd) {
  return {};
}
struct alignas(64) Line {
  int x;
};
auto arrow() -> int {
  return 1;
}
)");
  EXPECT_EQ(found, (Extents{{1, 3}, {4, 6}, {10, 12}}));
}

TEST(FunctionLengths, AccessLabelsAreNotPartOfAFunction) {
  const Extents found = function_extents("class C {\n public:\n  C() {\n  }\n};\n");
  EXPECT_EQ(found, (Extents{{3, 4}}));
}

TEST(FunctionLengths, ALongFunctionHasItsLength) {
  std::string text = "int f() {\n";
  for (int i = 0; i < 69; ++i) text += "  g();\n";
  text += "}\n";
  ASSERT_EQ(function_extents(text).size(), 1U);
  EXPECT_EQ(function_extents(text)[0].lines(), 71);
}

}  // namespace
}  // namespace terrace::tidy
