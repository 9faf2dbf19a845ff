#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/e2e/tiny_training.h"

// Standard streams that are closed or cannot be written, as jobs without a console have them.
namespace terrace {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// Runs the program with its streams redirected as a shell does it.
Outcome run_with(const std::string& redirections, const Arguments& arguments) {
  return ProgramRun(arguments, {}, {"sh", "-c", "exec \"$@\" " + redirections, "sh"}).wait();
}

TEST(StandardStreams, ErrorsThatCannotBeSaidKeepTheirCodes) {
  const TinyTraining training;
  for (const char* redirection : {"2>/dev/full", "2>&-"}) {
    SCOPED_TRACE(redirection);
    EXPECT_EQ(run_with(redirection, training.command("run", {"--max-step", "2"})).code, 2);
    const Arguments diverges = {"--max-steps", "8", "--learning-rate", "1e30"};
    EXPECT_EQ(run_with(redirection, training.command("run", diverges)).code, 6);
  }
}

TEST(StandardStreams, AWarningThatCannotBeSaidEndsNothing) {
  const TinyTraining training;
  training.directory().write("run/final", "a file where the result should be");
  const Outcome outcome = run_with("2>/dev/full", training.command("run", {"--max-steps", "2"}));
  EXPECT_EQ(outcome.code, 1) << outcome;
  EXPECT_EQ(training.last_committed("run"), 2);
}

// Otherwise the files that a run opens would get the numbers of closed streams, and so the messages
// to the console.
TEST(StandardStreams, WhatIsSaidToClosedOnesGoesToNoFile) {
  const TinyTraining training;
  const Arguments run = {"--max-steps",       "6",   "--place-parameters", "nvme",
                         "--place-optimizer", "nvme"};
  training.train("reference", training.nvme() + run);
  for (const char* redirections : {"<&- >&- 2>&-", "<&- >&-", ">&-", "2>&-"}) {
    SCOPED_TRACE(redirections);
    const std::string name = std::string("run") + redirections;
    const Outcome outcome = run_with(redirections, training.command(name, training.nvme() + run));
    EXPECT_EQ(outcome.code, 0) << outcome;
    training.expect_same(name, "reference", "final");
    EXPECT_THAT(training.directory().read(name + "/lock"), IsEmpty());
  }
}

// Such a reader is a terminal that was paused, or a pager at its first page.
TEST(StandardStreams, AReaderThatStandsStillStopsNothing) {
  const TinyTraining training;
  const std::string fifo = training.path("console");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const int reader = ::open(fifo.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::fcntl(reader, F_SETPIPE_SZ, 4096), 4096);
  const Arguments steps = {"--max-steps", "200", "--local-ranks", "2", "--collective-timeout", "5"};
  const Outcome outcome = run_with(">" + fifo + " 2>&1", training.command("run", steps));
  ::close(reader);
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_EQ(training.rows("run").size(), 200U);
  EXPECT_TRUE(training.directory().has("run/final/config.json"));
}

// The output is more than the pipe holds, and comes before its reader.
TEST(StandardStreams, AReaderThatComesLateReadsAll) {
  const TinyTraining training;
  const Outcome outcome = ProgramRun(training.command("run", {"--max-steps", "200"}), {},
                                     {"sh", "-c", "\"$@\" | { sleep 1; cat; }", "sh"})
                              .wait();
  for (int step = 1; step <= 200; ++step) {
    EXPECT_THAT(outcome.output, HasSubstr(fmt::format("\nstep {:>3}/200  ", step)));
  }
  EXPECT_THAT(outcome.output, HasSubstr("\nlimited by: "));
}

TEST(StandardStreams, AnOutputThatIsClosedFailsWhoIsAskedForIt) {
  const Outcome outcome = run_with(">&-", {"doctor"});
  EXPECT_EQ(outcome.code, 1) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("standard output"));
}

}  // namespace
}  // namespace terrace
