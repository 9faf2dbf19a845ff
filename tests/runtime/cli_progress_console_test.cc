#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <limits>
#include <thread>

#include "runtime/cli/progress_console.h"

namespace terrace {
namespace {

// What a console wrote while it trained for three steps, the second without a line.
std::string written(bool is_terminal, ProgressChoice choice) {
  std::FILE* file = std::tmpfile();
  {
    ProgressConsole console(file, is_terminal, choice);
    console.say("ledger\nof two lines\n");
    console.step("step 1", 1, 40, 78);
    console.step("", 2, 40, 76);
    console.step("step 3", 3, 40, 74);
    console.say("done");
  }
  std::string text(static_cast<std::size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
  std::fclose(file);
  return text;
}

TEST(ProgressConsole, WithoutATerminalThereAreOnlyLines) {
  const std::string lines = "ledger\nof two lines\nstep 1\nstep 3\ndone\n";
  EXPECT_EQ(written(false, ProgressChoice::kAuto), lines);
  EXPECT_EQ(written(false, ProgressChoice::kOff), lines);
  EXPECT_EQ(written(true, ProgressChoice::kOff), lines);
}

TEST(ProgressConsole, ProgressWithoutATerminalComesAsLines) {
  // One for each twentieth of the run that is entered.
  EXPECT_EQ(written(false, ProgressChoice::kOn),
            "ledger\nof two lines\nstep 1\nprogress: step 1/40, 1 min 18 s left\n"
            "progress: step 2/40, 1 min 16 s left\nstep 3\ndone\n");
}

TEST(ProgressConsole, TheBarStaysBelowTheLines) {
  for (const ProgressChoice choice : {ProgressChoice::kAuto, ProgressChoice::kOn}) {
    const std::string text = written(true, choice);
    EXPECT_THAT(text, testing::HasSubstr("\r\x1b[Kstep 3\n[="));
    EXPECT_THAT(text, testing::HasSubstr("] step 2/40, 1 min 16 s left\r\x1b[K"));
    EXPECT_THAT(text, testing::EndsWith("done\n[=                       ] step 3/40, "
                                        "1 min 14 s left\n"));
  }
}

// Returns the output of a console while a step was planned and after. A long planning goes on for
// longer than the pace of the console allows without a word.
std::string written_of_planning(bool is_terminal, ProgressChoice choice, bool is_long) {
  constexpr PlanningPace kShort = {std::chrono::milliseconds(20), std::chrono::milliseconds(20)};
  std::FILE* file = std::tmpfile();
  {
    ProgressConsole console(file, is_terminal, choice, is_long ? kShort : PlanningPace());
    {
      const PlanningPhase phase(console);
      if (is_long) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
    console.say("ledger");
  }
  std::string text(static_cast<std::size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
  std::fclose(file);
  return text;
}

TEST(ProgressConsole, PlanningThatTakesLongIsOneLineWithoutATerminal) {
  EXPECT_EQ(written_of_planning(false, ProgressChoice::kAuto, true),
            "planning the step ...\nledger\n");
  EXPECT_EQ(written_of_planning(false, ProgressChoice::kAuto, false), "ledger\n");
}

TEST(ProgressConsole, PlanningOnATerminalIsALineThatDisappears) {
  const std::string text = written_of_planning(true, ProgressChoice::kAuto, true);
  EXPECT_THAT(text, testing::StartsWith("\r\x1b[Kplanning the step: 0 s"));
  EXPECT_THAT(text, testing::EndsWith("planning the step: 0 s\r\x1b[Kledger\n"));
  EXPECT_EQ(written_of_planning(true, ProgressChoice::kAuto, false), "ledger\n");
}

TEST(ProgressConsole, PlanningIsNotToldWhereProgressIsOff) {
  for (const bool is_terminal : {false, true}) {
    EXPECT_EQ(written_of_planning(is_terminal, ProgressChoice::kOff, true), "ledger\n");
  }
}

TEST(ProgressConsole, DurationsHaveTwoUnitsAtMost) {
  EXPECT_EQ(duration_text(0.4), "0 s");
  EXPECT_EQ(duration_text(59.6), "1 min 00 s");
  EXPECT_EQ(duration_text(3725), "1 h 02 min");
  EXPECT_EQ(duration_text(90000), "1 d 01 h");
  EXPECT_EQ(duration_text(std::numeric_limits<double>::infinity()), "unknown time");
  EXPECT_EQ(duration_text(-5), "0 s");
}

}  // namespace
}  // namespace terrace
