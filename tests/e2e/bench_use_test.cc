#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/e2e/tiny_training.h"

// Benchmarks as people use them: with little time, interrupted, compared, without a drive's name.
namespace terrace {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

Outcome bench(const Arguments& arguments) { return run_program(Arguments{"bench"} + arguments); }

std::set<std::string> names_in(const json& results) {
  std::set<std::string> names;
  for (const json& result : results) names.insert(result.at("name").get<std::string>());
  return names;
}

class TimedBench : public testing::TestWithParam<const char*> {};

// However far the benchmark has come, its document is whole: the results in it are valid, and the
// missing ones are named.
TEST_P(TimedBench, EndsWithWhatItHas) {
  const TemporaryDirectory directory;
  const Outcome outcome = bench({GetParam(), "--small", "--repetitions", "1000", "--time-limit",
                                 "0.7", "--json", "--nvme", directory.path()});
  const json document = json::parse(outcome.output);
  EXPECT_EQ(document.at("complete"), false);
  EXPECT_EQ(document.at("cut_short").at("by"), "the time limit of 0.7 s");
  const std::set<std::string> names = names_in(document.at("results"));
  // A table without rows is a failure, and a message says so.
  EXPECT_EQ(outcome.code, names.empty() ? 1 : 0) << outcome;
  EXPECT_EQ(outcome.errors.find("the table has no rows") != std::string::npos, names.empty());
  const json& missing = document.at("cut_short").at("missing");
  EXPECT_FALSE(names.empty() && missing.empty());
  for (const json& name : missing) EXPECT_FALSE(names.contains(name)) << name;
  for (const json& result : document.at("results")) {
    EXPECT_EQ(result.at("value_samples").size(), result.at("repetitions")) << result;
    EXPECT_EQ(result.at("limit_samples").size(), result.at("repetitions")) << result;
  }
  EXPECT_THAT(outcome.errors, HasSubstr("; ends after 0.7 s, with the results so far"));
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

INSTANTIATE_TEST_SUITE_P(Kinds, TimedBench,
                         testing::Values("io", "copy", "optimizer", "kernel", "step", "collective",
                                         "simulator", "overlap"));

// A run of bench optimizer that has everything except its last result, which it then measures for a
// long time.
class LongBench {
 public:
  explicit LongBench(const Arguments& output, const std::vector<std::string>& launcher = {})
      : run_(Arguments{"bench", "optimizer", "--small", "--repetitions", "1000", "--nvme",
                       directory_.path()} +
                 output,
             {}, launcher) {
    EXPECT_TRUE(run_.wait_until([&] { return !run_.open_files("slots.bin").empty(); }));
  }

  ProgramRun& run() { return run_; }
  bool leaves_nothing() const { return std::filesystem::is_empty(directory_.path()); }

 private:
  TemporaryDirectory directory_;
  ProgramRun run_;
};

class InterruptedBench : public testing::TestWithParam<int> {};

TEST_P(InterruptedBench, PrintsWhatItHas) {
  LongBench bench({"--json"});
  bench.run().send(GetParam());
  const Outcome outcome = bench.run().wait();
  EXPECT_EQ(outcome.code, 128 + GetParam()) << outcome;
  const json document = json::parse(outcome.output);
  EXPECT_THAT(document.at("cut_short").at("by").get<std::string>(),
              testing::StartsWith(fmt::format("signal {} (", GetParam())));
  const std::set<std::string> names = names_in(document.at("results"));
  for (const char* const name : {"adamw_fp32", "adamw_split", "norm"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
  EXPECT_TRUE(bench.leaves_nothing());
}

INSTANTIATE_TEST_SUITE_P(Signals, InterruptedBench, testing::Values(SIGHUP, SIGINT, SIGTERM));

TEST(BenchUse, ATableIsPrintedOfWhatIsThere) {
  LongBench bench({});
  bench.run().send(SIGINT);
  const Outcome outcome = bench.run().wait();
  EXPECT_EQ(outcome.code, 128 + SIGINT) << outcome;
  EXPECT_THAT(outcome.output, HasSubstr("\nadamw_fp32 "));
  EXPECT_THAT(outcome.output, HasSubstr("by signal 2 ("));
}

// They are ignored under nohup, or in a job that a script has put into the background.
TEST(BenchUse, SignalsThatWereIgnoredStayIgnored) {
  LongBench bench({"--json"}, {"nohup"});
  bench.run().send(SIGHUP);
  bench.run().send(SIGTERM);
  const Outcome outcome = bench.run().wait();
  EXPECT_EQ(outcome.code, 128 + SIGTERM) << outcome;
  EXPECT_THAT(outcome.output, HasSubstr("signal 15 ("));
}

TEST(BenchUse, WithoutADriveItSaysWhichItUses) {
  const TemporaryDirectory directory;
  std::filesystem::create_directory(directory.path("here"));
  std::filesystem::create_directory(directory.path("temporary"));
  const auto run_with = [&](const std::string& temporary) {
    return ProgramRun({"bench", "simulator", "--small", "--repetitions", "1"}, {},
                      {"env", "-C", directory.path("here"), "TMPDIR=" + temporary})
        .wait();
  };
  const std::string temporary = directory.path("temporary");
  const Outcome outcome = run_with(temporary);
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("no --nvme DIR is given, so it uses " + temporary));
  EXPECT_THAT(outcome.errors, HasSubstr("; writes about "));
  EXPECT_TRUE(std::filesystem::is_empty(directory.path("here")));
  EXPECT_TRUE(std::filesystem::is_empty(temporary));
  const Outcome refused = run_with(directory.path("none"));
  EXPECT_EQ(refused.code, 2) << refused;
  EXPECT_THAT(refused.errors, HasSubstr(directory.path("none")));
}

TEST(BenchUse, ResultsAreComparedWithEarlierOnes) {
  const TemporaryDirectory directory;
  const Outcome first = bench({"copy", "--small", "--json"});
  ASSERT_EQ(first.code, 0) << first;
  const std::string old = directory.write("old.json", first.output);
  const Outcome second = bench({"copy", "--small", "--json", "--compare", old});
  ASSERT_EQ(second.code, 0) << second;
  const json document = json::parse(second.output);
  EXPECT_EQ(names_in(document.at("comparison")), names_in(document.at("results")));
  EXPECT_THAT(second.output, Not(HasSubstr(directory.path())));
  const Outcome table =
      bench({"copy", "--compare", old, directory.write("new.json", second.output)});
  EXPECT_EQ(table.code, 0) << table;
  EXPECT_THAT(table.output, HasSubstr("new/old"));
  EXPECT_THAT(table.output, HasSubstr("\nupload_and_download "));
  EXPECT_THAT(table.errors, Not(HasSubstr("rounds"))) << "it has measured";
  const Outcome other = bench({"kernel", "--small", "--compare", old});
  EXPECT_EQ(other.code, 2) << other;
  EXPECT_THAT(other.errors, HasSubstr("it belongs to bench copy, not to bench kernel"));
  EXPECT_EQ(bench({"copy", "--compare", old, old, old}).code, 2);
}

TEST(BenchUse, CsvHasALineForEachResult) {
  const Outcome outcome = bench({"copy", "--small", "--csv"});
  ASSERT_EQ(outcome.code, 0) << outcome;
  EXPECT_EQ(std::ranges::count(outcome.output, '\n'), 5);
  EXPECT_THAT(outcome.output, HasSubstr("\ncopy,memcpy,"));
}

TEST(BenchUse, HelpOfAKindHasItsFlagsAlone) {
  struct Help {
    const char* kind;
    std::vector<std::string> has;
    std::vector<std::string> lacks;
  };
  const std::vector<Help> helps = {
      {"io", {"--nvme", "--no-grid", "--size", "--seconds"}, {"--threads", "--device", "--tokens"}},
      {"copy",
       {"--device", "--size"},
       {"--nvme", "--no-grid", "--zero-stage", "--seconds", "--sizes"}},
      {"step", {"--zero-stage", "--local-ranks", "--preset"}, {"--size", "--no-grid"}},
      {"collective", {"--threads", "--size", "--sizes"}, {"--nvme", "--device"}},
      {"overlap", {"--tokens", "--nvme"}, {"--preset", "--device", "--seconds"}}};
  for (const Help& help : helps) {
    const Outcome outcome = bench({help.kind, "--help"});
    EXPECT_EQ(outcome.code, 0) << outcome;
    for (const std::string common : {"--time-limit", "--compare", "--csv", "--json", "--small"}) {
      EXPECT_THAT(outcome.output, HasSubstr("  " + common + " ")) << help.kind;
    }
    for (const std::string& flag : help.has) {
      EXPECT_THAT(outcome.output, HasSubstr("  " + flag + " ")) << help.kind;
    }
    for (const std::string& flag : help.lacks) {
      EXPECT_THAT(outcome.output, Not(HasSubstr("  " + flag + " "))) << help.kind;
    }
  }
}

// All kinds accept the same arguments.
TEST(BenchUse, SaysWhereThereIsNoGrid) {
  const Outcome outcome = bench({"copy", "--small", "--no-grid"});
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("this benchmark has no grid: --no-grid changes nothing"));
  const TemporaryDirectory directory;
  const Outcome io =
      bench({"io", "--small", "--no-grid", "--repetitions", "1", "--nvme", directory.path()});
  EXPECT_EQ(io.code, 0) << io;
  EXPECT_THAT(io.errors, Not(HasSubstr("trying block sizes")));
}

// The block is the same, whichever command prints it.
TEST(HostBlock, IsTheSameInEveryDocument) {
  const TinyTraining training;
  ASSERT_EQ(training.train("run", {"--max-steps", "1"}).code, 0);
  const Outcome doctor = run_program({"doctor", "--json"});
  const Outcome copy = bench({"copy", "--small", "--json"});
  const std::vector<json> hosts = {
      json::parse(copy.output).at("host"), json::parse(doctor.output).at("host"),
      json::parse(training.directory().read("run/run.json")).at("host")};
  for (const json& host : hosts) {
    std::vector<std::string> keys, expected;
    for (const auto& [key, value] : host.items()) keys.push_back(key);
    for (const auto& [key, value] : hosts.front().items()) expected.push_back(key);
    EXPECT_EQ(keys, expected);
    EXPECT_EQ(host.at("cpu"), hosts.front().at("cpu"));
    EXPECT_EQ(host.at("kernel"), hosts.front().at("kernel"));
  }
}

}  // namespace
}  // namespace terrace
