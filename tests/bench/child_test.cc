#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "bench/child_program.h"
#include "tests/runtime/cli/process_state.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

ChildOutcome run_shell(const std::string& script, const std::vector<int>& files = {}) {
  return run_child(
      {.command = {"sh", "-c", script}, .environment = {"OF_THE_TEST=a value"}, .files = files});
}

TEST(ChildProgram, WhatItSaysAndItsExitCodeAreTold) {
  const ChildOutcome outcome = run_shell("echo out; echo \"$OF_THE_TEST\" >&2; exit 3");
  EXPECT_EQ(outcome.output, "out\na value\n");
  EXPECT_EQ(outcome.code, 3);
  EXPECT_EQ(outcome.signal, 0);
}

TEST(ChildProgram, OneThatIsNotThereHasACodeOfItsOwn) {
  const ChildOutcome outcome =
      run_child({.command = {"terrace-no-such-program"}, .environment = {}});
  EXPECT_EQ(outcome.code, 127);
  EXPECT_EQ(outcome.output, "");
}

TEST(ChildProgram, TheSignalThatEndedItIsTold) {
  EXPECT_EQ(run_shell("kill -TERM $$").signal, SIGTERM);
}

TEST(ChildProgram, FilesThatAreNamedAreOpenInItAndOthersAreNot) {
  const TemporaryDirectory directory;
  std::FILE* const file = std::fopen(directory.write("file", "some bytes").c_str(), "re");
  ASSERT_NE(file, nullptr);
  const int descriptor = ::fileno(file);
  const std::string cat = "cat /proc/self/fd/" + std::to_string(descriptor);
  EXPECT_EQ(run_shell(cat, {descriptor}).output, "some bytes");
  EXPECT_NE(run_shell(cat).code, 0);
  std::fclose(file);
}

TEST(ChildProgram, EndsWithWhoeverStartedIt) {
  const TemporaryDirectory directory;
  const std::string file = directory.path("process");
  const pid_t parent = ::fork();
  ASSERT_LE(0, parent);
  if (parent == 0) {
    run_shell("echo $$ > " + file + ".new; mv " + file + ".new " + file + "; exec sleep 600");
    ::_exit(0);
  }
  constexpr auto kPause = std::chrono::milliseconds(5);
  constexpr int kTries = 2000;
  for (int i = 0; i < kTries && !directory.has("process"); ++i) {
    std::this_thread::sleep_for(kPause);
  }
  ASSERT_TRUE(directory.has("process"));
  std::string child = directory.read("process");
  child.pop_back();
  EXPECT_FALSE(has_ended(child));
  ASSERT_EQ(::kill(parent, SIGKILL), 0);
  ASSERT_EQ(::waitpid(parent, nullptr, 0), parent);
  for (int i = 0; i < kTries && !has_ended(child); ++i) std::this_thread::sleep_for(kPause);
  EXPECT_TRUE(has_ended(child));
}

}  // namespace
}  // namespace terrace
