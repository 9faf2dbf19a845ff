#include "tests/tidy/parameter_counts.h"

#include <gtest/gtest.h>

#include <ostream>
#include <string>

namespace terrace::tidy {

void PrintTo(const ParameterList& list, std::ostream* out) {
  *out << list.line << ' ' << list.name << ' ' << list.parameters;
}

namespace {

using Lists = std::vector<ParameterList>;

TEST(ParameterCounts, FindsDeclarationsAndDefinitions) {
  const Lists found = parameter_lists(R"(namespace a {
int none();
int nothing(void);
static constexpr int one(int a) { return call(a, a, a, a, a, a, a); }
[[nodiscard]] std::pair<int, int> two(const A& a,
                                      B b) noexcept(noexcept(f(1, 2, 3)));
auto three(int, int, int) -> std::map<int, int>;
int printed(const char* format, ...) __attribute__((format(printf, 1, 2)));
}  // namespace a
int a::four(int a, int b, int c, int d) {
  return sum(a, b, c, d, 5, 6, 7);
}
)");
  EXPECT_EQ(found, (Lists{{2, "none", 0},
                          {3, "nothing", 0},
                          {4, "one", 1},
                          {5, "two", 2},
                          {7, "three", 3},
                          {8, "printed", 2},
                          {10, "four", 4}}));
}

TEST(ParameterCounts, FindsMembersConstructorsAndOperators) {
  const Lists found = parameter_lists(R"(class C final : public B<decltype(f(1, 2))> {
 public:
  explicit C(int a, int b) : a_(a, b, 3), b_{b}, c_{1, 2, 3, 4, 5, 6} {}
  C(const C&) = delete;
  ~C() override;
  bool operator==(const C&) const = default;
  auto operator<=>(const C& other) const;
  int operator()(int a, int b, int c) const { return a; }
  C& operator=(C&&);
  explicit operator bool() const;
  virtual int f(int, int) = 0;

 private:
  int a_ = g(1, 2, 3, 4, 5, 6);
  int b_{h(1, 2, 3, 4, 5, 6)};
  Six c_ = {1, 2, 3, 4, 5, 6};
  int last(int a);
};
C::C(int a) : a_(a) { begin(a, 1, 2, 3, 4, 5); }
)");
  EXPECT_EQ(found, (Lists{{3, "C", 2},
                          {4, "C", 1},
                          {5, "C", 0},
                          {6, "operator", 1},
                          {7, "operator", 1},
                          {8, "operator", 3},
                          {9, "operator", 1},
                          {10, "operator", 0},
                          {11, "f", 2},
                          {17, "last", 1},
                          {19, "C", 1}}));
}

TEST(ParameterCounts, CommasInsideAParameterDoNotCount) {
  const Lists found = parameter_lists(R"(void f(std::map<int, std::pair<int, int>> map = {{1, 2}},
       int sum = g(1, 2, 3), int shift = 1 << 2, int array[h(1, 2)] = {1, 2},
       Point p = Point{1, 2});
void callbacks(void (*done)(int, int, int), std::function<void(int, int)> each,
               int (C::*member)(int, int), FunctionRef<int(A, B, C)> last);
void shifted(int a = 8 >> 1, std::array<int, (1 > 0)> b = {});
)");
  EXPECT_EQ(found, (Lists{{1, "f", 5}, {4, "callbacks", 4}, {6, "shifted", 2}}));
}

TEST(ParameterCounts, TypesOfMembersAndVariablesAreNoLists) {
  const Lists found = parameter_lists(R"(struct Table {
  void (*run)(A, B, C, D, E, F) = nullptr;
  std::function<int(A, B, C, D, E, F)> call;
  alignas(64) int x;
  int f(int a);
};
using Run = void(A, B, C, D, E, F);
typedef void (*Old)(A, B, C, D, E, F);
const int kX = f(1, 2, 3, 4, 5, 6);
static_assert(check(1, 2, 3, 4, 5, 6), "text");
int after(int a);
)");
  EXPECT_EQ(found, (Lists{{5, "f", 1}, {11, "after", 1}}));
}

TEST(ParameterCounts, TemplateParametersDoNotCount) {
  const Lists found = parameter_lists(R"(template <typename A, typename B = std::pair<int, int>,
          void (*Run)(int, int, int), int N = f(1, 2)>
  requires(N > 1)
void f(A a, B b) {}
template <typename Op, void (*Run)(Launcher&, const Op&)>
struct S {
  template <int M>
  __global__ void __launch_bounds__(256, 2) kernel(int a, int b, int c) {}
};
template <>
int f<int, 3>(int a);
)");
  EXPECT_EQ(found, (Lists{{4, "f", 2}, {8, "kernel", 3}, {11, "f", 1}}));
}

TEST(ParameterCounts, FindsLambdasFirst) {
  const Lists found = parameter_lists(R"(const auto kAll = [](int a, int b) { return a + b; };
int f(const std::function<void(int, int)>& each = [](int, int) {}) {
  const auto add = [=, &x](int a, int b, int c) mutable { return a; };
  table[3](1, 2, 3, 4, 5, 6);
  functions()[i](1, 2, 3, 4, 5, 6);
  use([]<typename T, int N>(std::type_identity<T>, T t) { return t; });
  return [&](int a) { return a; }(1);
}
[[nodiscard]] int g(int a);
)");
  EXPECT_EQ(found, (Lists{{1, "lambda", 2},
                          {2, "lambda", 2},
                          {3, "lambda", 3},
                          {6, "lambda", 2},
                          {7, "lambda", 1},
                          {2, "f", 1},
                          {9, "g", 1}}));
}

TEST(ParameterCounts, LooksIntoTypesInsideFunctions) {
  const Lists found = parameter_lists(R"(void f() {
  struct Local {
    int g(int a, int b) { return h(a, b, 1, 2, 3, 4); }
  };
  for (int i = 0; i < 3; ++i) call(1, 2, 3, 4, 5, 6);
}
)");
  EXPECT_EQ(found, (Lists{{1, "f", 0}, {3, "g", 2}}));
}

TEST(ParameterCounts, MacrosCommentsStringsAndDirectivesAreNoFunctions) {
  const Lists found = parameter_lists(R"text(#define CALL(a, b, c, d, e, f) g(a, b, c, d, e, f)
TEST(Suite, Name) { call(1, 2, 3, 4, 5, 6); }
int f(int a);  // int g(int a, int b)
INSTANTIATE_TEST_SUITE_P(A, B, testing::Values(1, 2, 3, 4, 5, 6));
const char* text = "int h(int a, int b)";
TERRACE_KERNEL void kernel(int a /*, int b */, int c) {}
)text");
  EXPECT_EQ(found, (Lists{{3, "f", 1}, {6, "kernel", 2}}));
}

}  // namespace
}  // namespace terrace::tidy
