#include "base/failure_text.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <new>
#include <stdexcept>
#include <system_error>
#include <vector>

#include "base/error.h"

namespace terrace {
namespace {

std::string text_of(const std::function<void()>& fail) {
  try {
    fail();
  } catch (const std::exception& failure) {
    return failure_text(failure);
  }
  return "nothing failed";
}

TEST(FailureText, ErrorsOfTerraceSayWhatTheySay) {
  EXPECT_EQ(text_of([] { throw ConfigError("no such model", "name one"); }),
            "no such model; name one");
  EXPECT_TRUE(is_foreseen(NotFinite("the loss is not a number", "")));
  EXPECT_TRUE(is_foreseen(std::bad_alloc()));
}

TEST(FailureText, ALibrarysExceptionIsADefectAndItsTextIsLeftOut) {
  const std::vector<int> four(4);
  const std::string text = text_of([&] { EXPECT_EQ(four.at(4), 0); });
  EXPECT_EQ(text, "a defect of Terrace: no code handles an unexpected std::out_of_range");
  EXPECT_FALSE(is_foreseen(std::logic_error("")));
}

TEST(FailureText, WhatTheSystemRefusedIsSaid) {
  EXPECT_EQ(text_of([] { throw std::system_error(EMFILE, std::generic_category(), "secret"); }),
            "a defect of Terrace: no code handles an unexpected std::system_error (Too many open "
            "files)");
  EXPECT_EQ(text_of([] { std::filesystem::create_directory("/proc/none"); }),
            "a defect of Terrace: no code handles an unexpected "
            "std::filesystem::filesystem_error of /proc/none (No such file or directory)");
}

}  // namespace
}  // namespace terrace
