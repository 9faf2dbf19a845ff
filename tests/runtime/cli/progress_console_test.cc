#include "runtime/cli/progress_console.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <limits>
#include <optional>
#include <string>
#include <thread>

#include "runtime/cli/standard_output.h"

namespace terrace {
namespace {

StepProgress step_of_40(const std::string& line, std::int64_t step, double seconds_left) {
  return {.line = line,
          .step = step,
          .last_step = 40,
          .seconds_left = seconds_left,
          .loss = 2.5,
          .tokens_per_s = 12345};
}

std::string content_of(std::FILE* file) {
  std::string text(static_cast<std::size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
  std::fclose(file);
  return text;
}

// Returns what a console wrote while it trained for three steps, of which the second has no line.
std::string written(bool is_terminal, ProgressChoice choice, int columns = 80) {
  std::FILE* file = std::tmpfile();
  {
    ProgressConsole console(file,
                            {.is_terminal = is_terminal, .choice = choice, .columns = columns});
    console.say("ledger\nof two lines\n");
    console.step(step_of_40("step 1", 1, 78));
    console.step(step_of_40("", 2, 76));
    console.step(step_of_40("step 3", 3, 74));
    console.say("done");
  }
  return content_of(file);
}

TEST(ProgressConsole, WithoutATerminalThereAreOnlyLines) {
  const std::string lines = "ledger\nof two lines\nstep 1\nstep 3\ndone\n";
  EXPECT_EQ(written(false, ProgressChoice::kAuto), lines);
  EXPECT_EQ(written(false, ProgressChoice::kOff), lines);
  EXPECT_EQ(written(true, ProgressChoice::kOff), lines);
}

TEST(ProgressConsole, ProgressWithoutATerminalComesAsLines) {
  // There is a line for each twentieth of the run that is entered.
  EXPECT_EQ(written(false, ProgressChoice::kOn),
            "ledger\nof two lines\nstep 1\nprogress: step 1/40, 1 min 18 s left\n"
            "progress: step 2/40, 1 min 16 s left\nstep 3\ndone\n");
}

TEST(ProgressConsole, TheBarStaysBelowTheLinesAndIsGoneAtTheEnd) {
  for (const ProgressChoice choice : {ProgressChoice::kAuto, ProgressChoice::kOn}) {
    const std::string text = written(true, choice);
    EXPECT_THAT(text, testing::HasSubstr("\r\x1b[Kstep 3\n[="));
    EXPECT_THAT(text, testing::HasSubstr(
                          "] step 2/40, 1 min 16 s left, loss 2.5000, 12.3k tokens/s\r\x1b[K"));
    EXPECT_THAT(text, testing::EndsWith("tokens/s\r\x1b[Kdone\n[=                    ] step "
                                        "3/40, 1 min 14 s left, loss 2.5000, 12.3k tokens/s"
                                        "\r\x1b[K"));
  }
}

// Escapes take no room, so the bar is as wide as without colours.
TEST(ProgressConsole, TheBarMayBeColoured) {
  std::FILE* file = std::tmpfile();
  {
    ProgressConsole console(file, {.is_terminal = true, .columns = 80, .has_colours = true});
    console.step(step_of_40("", 20, 76));
  }
  EXPECT_THAT(content_of(file),
              testing::StartsWith("[\x1b[32m==========\x1b[0m          ] step 20/40, "));
}

// A line as wide as the terminal would wrap, and then it could not be erased.
TEST(ProgressConsole, TheBarIsNarrowerThanTheTerminal) {
  for (const int columns : {1, 5, 10, 20, 40, 60, 79, 80, 200}) {
    const std::string text = written(true, ProgressChoice::kAuto, columns);
    std::size_t bars = 0;
    for (std::size_t at = text.find("\r\x1b[K"); at != std::string::npos; ++bars) {
      const std::size_t line = text.rfind('\n', at) + 1;
      const std::size_t erased = text.rfind("\x1b[K", at);
      const std::size_t begin = std::max(line, erased == std::string::npos ? 0 : erased + 3);
      EXPECT_LT(at - begin, static_cast<std::size_t>(std::max(columns, 2))) << columns;
      at = text.find("\r\x1b[K", at + 1);
    }
    if (columns >= 10) {
      EXPECT_GE(bars, 3U) << columns;
    }
  }
  EXPECT_THAT(written(true, ProgressChoice::kAuto, 40),
              testing::HasSubstr("step 2/40, 1 min 16 s left, loss 2.5000\r"));
  EXPECT_THAT(written(true, ProgressChoice::kAuto, 20), testing::HasSubstr("step 2/40\r"));
}

TEST(ProgressConsole, WhatOthersPrintStandsAboveTheBar) {
  std::FILE* file = std::tmpfile();
  {
    ProgressConsole console(file, {.is_terminal = true, .columns = 18});
    console.step(step_of_40("step 1", 1, 78));
    console.above_progress([&] { std::fputs("warning\n", file); });
  }
  EXPECT_EQ(content_of(file), "step 1\nstep 1/40\r\x1b[Kwarning\nstep 1/40\r\x1b[K");
}

enum class Length : std::uint8_t { kShort, kLong, kLongWithParts };

// Returns the output of a console in a phase after the first step. A long phase goes on for longer
// than the console may stay silent.
std::string written_of_phase(bool is_terminal, ProgressChoice choice, Length length) {
  constexpr PhasePace kFast = {std::chrono::milliseconds(20), std::chrono::milliseconds(20)};
  constexpr PhasePace kSlow = {std::chrono::hours(1), std::chrono::hours(1)};
  std::FILE* file = std::tmpfile();
  {
    ProgressConsole console(file, {.is_terminal = is_terminal,
                                   .choice = choice,
                                   .columns = 18,
                                   .pace = length == Length::kShort ? kSlow : kFast});
    console.step(step_of_40("step 1", 1, 78));
    {
      ConsolePhase phase(console, "evaluating");
      if (length == Length::kLongWithParts) phase.advance(1, 2);
      if (length != Length::kShort) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
    console.say("done");
  }
  return content_of(file);
}

TEST(ProgressConsole, APhaseThatTakesLongIsOneLineWithoutATerminal) {
  EXPECT_EQ(written_of_phase(false, ProgressChoice::kAuto, Length::kLong),
            "step 1\nevaluating ...\ndone\n");
  EXPECT_EQ(written_of_phase(false, ProgressChoice::kAuto, Length::kShort), "step 1\ndone\n");
}

TEST(ProgressConsole, APhaseTellsItsPartsWhereProgressWasAskedFor) {
  EXPECT_EQ(written_of_phase(false, ProgressChoice::kOn, Length::kLongWithParts),
            "step 1\nprogress: step 1/40, 1 min 18 s left\nevaluating ...\n"
            "progress: evaluating: 50 %, 0 s left\ndone\n");
}

TEST(ProgressConsole, APhaseOnATerminalIsALineThatMakesRoomForTheBarAgain) {
  const std::string text = written_of_phase(true, ProgressChoice::kAuto, Length::kLong);
  EXPECT_THAT(text, testing::StartsWith("step 1\nstep 1/40\r\x1b[Kevaluating: 0 s\r\x1b[K"));
  EXPECT_THAT(text, testing::EndsWith("evaluating: 0 s\r\x1b[Kstep 1/40\r\x1b[Kdone\n"
                                      "step 1/40\r\x1b[K"));
  EXPECT_THAT(written_of_phase(true, ProgressChoice::kAuto, Length::kLongWithParts),
              testing::HasSubstr("\r\x1b[Kevaluating: 50 %,\r"));
  EXPECT_EQ(written_of_phase(true, ProgressChoice::kAuto, Length::kShort),
            "step 1\nstep 1/40\r\x1b[Kdone\nstep 1/40\r\x1b[K");
}

TEST(ProgressConsole, PhasesAreNotToldWhereProgressIsOff) {
  for (const bool is_terminal : {false, true}) {
    EXPECT_EQ(written_of_phase(is_terminal, ProgressChoice::kOff, Length::kLong), "step 1\ndone\n");
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

// Sets an environment variable, or removes it, until the end of the scope.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* const before = ::getenv(name)) before_ = before;
    set(value);
  }
  ~Variable() { set(before_ ? before_->c_str() : nullptr); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  void set(const char* value) const {
    if (value == nullptr) {
      ::unsetenv(name_);
    } else {
      ::setenv(name_, value, 1);
    }
  }

  const char* const name_;
  std::optional<std::string> before_;
};

class Terminal : public testing::Test {
 public:
  Terminal() : descriptor_(::posix_openpt(O_RDWR | O_NOCTTY)) {}
  ~Terminal() override { ::close(descriptor_); }

 protected:
  void SetUp() override { ASSERT_EQ(::isatty(descriptor_), 1); }

  const int descriptor_;
  const Variable no_refusal_{"NO_COLOR", nullptr};
};

TEST_F(Terminal, ErasesLinesAndTakesColours) {
  const Variable term("TERM", "xterm");
  EXPECT_TRUE(erases_lines(descriptor_));
  EXPECT_TRUE(takes_colours(descriptor_));
  const Variable refused("NO_COLOR", "1");
  EXPECT_TRUE(erases_lines(descriptor_));
  EXPECT_FALSE(takes_colours(descriptor_));
}

TEST_F(Terminal, DoesNeitherWhereItIsDumbOrUnknown) {
  for (const char* const name : {"dumb", static_cast<const char*>(nullptr)}) {
    const Variable term("TERM", name);
    EXPECT_FALSE(erases_lines(descriptor_));
    EXPECT_FALSE(takes_colours(descriptor_));
  }
}

TEST(Pipes, AreNoTerminals) {
  const Variable term("TERM", "xterm");
  int ends[2] = {};
  ASSERT_EQ(::pipe(ends), 0);
  EXPECT_FALSE(erases_lines(ends[1]));
  EXPECT_FALSE(takes_colours(ends[1]));
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace terrace
