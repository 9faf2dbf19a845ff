#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/e2e/checkout_paths.h"
#include "tests/e2e/tiny_training.h"

namespace terrace {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

// A folder like /sys/class/powercap whose counter moves.
class MovingCounter {
 public:
  explicit MovingCounter(const TemporaryDirectory& directory) {
    directory.write("powercap/intel-rapl:0/name", "package-0\n");
    directory.write("powercap/intel-rapl:0/max_energy_range_uj", "262143328850\n");
    file_ = ::open(directory.write("powercap/intel-rapl:0/energy_uj", "").c_str(), O_WRONLY);
    EXPECT_GE(file_, 0);
    show(0);
    mover_ = std::jthread([this](const std::stop_token& stop) {
      for (std::uint64_t joules = 1; !stop.stop_requested(); ++joules) {
        show(joules);
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    });
  }
  ~MovingCounter() {
    mover_ = {};
    ::close(file_);
  }
  MovingCounter(const MovingCounter&) = delete;
  MovingCounter& operator=(const MovingCounter&) = delete;

  double joules() const { return static_cast<double>(shown_); }

 private:
  // Always writes the same number of digits, so that a reader never finds a part of a number.
  void show(std::uint64_t joules) {
    const std::string text = fmt::format("{:010}000000\n", joules);
    EXPECT_EQ(::pwrite(file_, text.data(), text.size(), 0), std::ssize(text));
    shown_ = joules;
  }

  int file_ = -1;
  std::atomic<std::uint64_t> shown_ = 0;
  std::jthread mover_;
};

class Energy : public testing::Test {
 protected:
  Outcome train_with(const std::string& powercap, const Arguments& more,
                     const Denied& denied = {}) const {
    Command command{{"env", "TERRACE_POWERCAP=" + training_.path(powercap)}};
    const Arguments train = training_.command("run", more);
    command.words.push_back(program_path());
    command.words.insert(command.words.end(), train.begin(), train.end());
    return ProgramRun(command, denied).wait();
  }
  json run_file() const { return json::parse(training_.directory().read("run/run.json")); }

  const TinyTraining training_;
};

TEST_F(Energy, IsInEveryReportOfARun) {
  const MovingCounter counter(training_.directory());
  const Arguments steps = {"--max-steps", "30", "--eval-every", "10"};
  const Outcome outcome = train_with("powercap", steps);
  const double whole = counter.joules();
  ASSERT_EQ(outcome.code, 0) << outcome;
  EXPECT_THAT(outcome.output, HasSubstr("energy is measured for the processors (package-0)\n"));
  EXPECT_THAT(outcome.output, HasSubstr("\nenergy: "));
  EXPECT_THAT(outcome.output, HasSubstr(" J a token, "));

  double joules = 0;
  double tokens = 0;
  for (const MetricsRow& row : training_.rows("run")) {
    if (!row.columns.contains("joules")) continue;
    joules += row.columns.at("joules");
    tokens += row.columns.at("tokens");
    EXPECT_NEAR(row.columns.at("joules_per_token"),
                row.columns.at("joules") / row.columns.at("tokens"), 1e-9);
  }
  EXPECT_GT(joules, 0);
  EXPECT_LT(joules, whole) << "the start and the evaluations are no steps";
  const json energy = run_file().at("energy");
  EXPECT_EQ(energy.at("measured"), "energy is measured for the processors (package-0)");
  EXPECT_NEAR(energy.at("joules"), joules, 1e-9 * joules);
  EXPECT_EQ(energy.at("steps"), 30);

  const Arguments report = {"report", training_.path("run"), "--output"};
  ASSERT_EQ(run_program(report + Arguments{training_.path("page.html")}).code, 0);
  const std::string page = training_.directory().read("page.html");
  EXPECT_THAT(page, HasSubstr("<dt>Energy</dt><dd><data value=\"" + fmt::format("{}\"", joules)));
  EXPECT_THAT(page, HasSubstr("energy is measured for the processors (package-0)"));
  const Outcome metrics = run_program({"report", training_.path("run"), "--format", "prometheus"});
  const double last = training_.rows("run").back().columns.at("joules");
  EXPECT_THAT(metrics.output,
              HasSubstr("terrace_step_joules{run=\"run\"} " + fmt::format("{}", last) + "\n"));
}

TEST_F(Energy, OfSeveralRanksOnAMachineIsCountedOnce) {
  const MovingCounter counter(training_.directory());
  const Outcome outcome = train_with("powercap", {"--max-steps", "20", "--local-ranks", "4"});
  const double whole = counter.joules();
  ASSERT_EQ(outcome.code, 0) << outcome;
  const double joules = run_file().at("energy").at("joules");
  EXPECT_GT(joules, 0);
  EXPECT_LT(joules, whole);
}

TEST_F(Energy, WithoutCountersIsSaidOnceAndNeverZero) {
  const Outcome outcome = train_with("absent", {"--max-steps", "3"});
  ASSERT_EQ(outcome.code, 0) << outcome;
  const std::string said = "energy is not measured: no " + training_.path("absent");
  const std::size_t at = outcome.output.find(said);
  ASSERT_NE(at, std::string::npos) << outcome;
  EXPECT_EQ(outcome.output.find("\nenergy", at + said.size()), std::string::npos) << outcome;
  EXPECT_THAT(training_.directory().read("run/metrics.jsonl"), Not(HasSubstr("joules")));
  const json energy = run_file().at("energy");
  EXPECT_THAT(energy.at("measured"), HasSubstr(said));
  EXPECT_FALSE(energy.contains("joules"));
}

TEST_F(Energy, OfAFileForRootAloneNamesTheRemedy) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to take the right away";
  training_.directory().write("powercap/intel-rapl:0/name", "package-0\n");
  const std::string file =
      training_.directory().write("powercap/intel-rapl:0/energy_uj", "1000000\n");
  ASSERT_EQ(::chmod(file.c_str(), 0), 0);
  Denied denied;
  denied.write_permission_of_root = true;
  const Outcome outcome = train_with("powercap", {"--max-steps", "1"}, denied);
  ASSERT_EQ(outcome.code, 0) << outcome;
  EXPECT_THAT(outcome.output,
              HasSubstr("energy is not measured: cannot open " + file +
                        ": Permission denied; the "
                        "file is readable by root alone: train as root, or as root chmod a+r " +
                        training_.path("powercap") + "/*/energy_uj"));
}

TEST_F(Energy, ChangesNoBits) {
  const Arguments steps = {"--max-steps", "12"};
  training_.train("plain", steps);
  const MovingCounter counter(training_.directory());
  ASSERT_EQ(train_with("powercap", steps).code, 0);
  training_.expect_same("run", "plain", "final");
}

}  // namespace
}  // namespace terrace
