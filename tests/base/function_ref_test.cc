#include "base/function_ref.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace terrace {
namespace {

int twice(int value) { return 2 * value; }

int call(FunctionRef<int(int)> function, int value) { return function(value); }

TEST(FunctionRefTest, IsTwoPointers) { EXPECT_EQ(sizeof(FunctionRef<void()>), 2 * sizeof(void*)); }

TEST(FunctionRefTest, CallsLambdasWithState) {
  int calls = 0;
  const int base = 10;
  EXPECT_EQ(call([&](int value) { return ++calls, base + value; }, 5), 15);
  EXPECT_EQ(calls, 1);
}

TEST(FunctionRefTest, BorrowsAndDoesNotCopy) {
  struct Counter {
    int calls = 0;
    int operator()(int) { return ++calls; }
  };
  Counter counter;
  const FunctionRef<int(int)> first = counter;
  const FunctionRef<int(int)> copy = first;
  first(0);
  copy(0);
  EXPECT_EQ(counter.calls, 2);
}

TEST(FunctionRefTest, CallsConstObjectsAndFunctions) {
  const auto add_one = [](int value) { return value + 1; };
  EXPECT_EQ(call(add_one, 1), 2);
  int (*const function)(int) = &twice;
  EXPECT_EQ(call(function, 4), 8);
}

TEST(FunctionRefTest, PassesReferencesAndMoveOnlyArguments) {
  std::string text;
  const auto append = [](std::string& target, std::unique_ptr<int> value) {
    target += std::to_string(*value);
  };
  const FunctionRef<void(std::string&, std::unique_ptr<int>)> function = append;
  function(text, std::make_unique<int>(7));
  EXPECT_EQ(text, "7");
}

}  // namespace
}  // namespace terrace
