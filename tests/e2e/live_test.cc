#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>

#include "tests/e2e/tiny_training.h"
#include "tests/runtime/report/http_request.h"
#include "tests/runtime/report/well_formed.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kAddress = "on this machine only: http://127.0.0.1:";

class Live : public testing::Test {
 protected:
  // Waits until the run says its address, and returns the port; 0 where the run ended first.
  static int port_of(ProgramRun& run) {
    int port = 0;
    run.wait_until([&] {
      const std::string output = run.output();
      const std::size_t at = output.find(kAddress);
      if (at == std::string::npos ||
          output.find('/', at + std::string(kAddress).size()) == std::string::npos) {
        return false;
      }
      port = std::atoi(output.c_str() + at + std::string(kAddress).size());
      return true;
    });
    return port;
  }

  const TinyTraining training_;
};

TEST_F(Live, ServesTheReportWhileTheRunGoesOn) {
  ProgramRun run(training_.command("run", {"--max-steps", "1000000", "--live"}));
  const int port = port_of(run);
  ASSERT_GT(port, 0) << run.errors();
  ASSERT_TRUE(run.wait_for("/1000000  loss", 3));
  const HttpAnswer page = http_get(port, "/");
  EXPECT_EQ(page.status, 200) << page.body;
  EXPECT_EQ(report::problem_of_xml(page.body), "");
  EXPECT_THAT(page.body, HasSubstr("<h2>Run run</h2>"));
  const HttpAnswer metrics = http_get(port, "/metrics");
  EXPECT_EQ(metrics.status, 200);
  EXPECT_THAT(metrics.body, HasSubstr("terrace_loss_nats_per_token{run=\"run\"} "));
  const std::string foreign = "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n";
  EXPECT_EQ(http_answer(port, foreign).status, 403);

  const Outcome second = run_program(
      training_.command("second", {"--max-steps", "1", "--live", std::to_string(port)}));
  EXPECT_EQ(second.code, 2) << second;
  EXPECT_THAT(second.errors, HasSubstr(fmt::format("port {} of 127.0.0.1", port)));
  EXPECT_FALSE(training_.directory().has("second")) << "it is refused before it begins";

  const LoopbackConnection silent(port);
  run.send(SIGTERM);
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.code, 75) << outcome;
  EXPECT_FALSE(LoopbackConnection(port).is_open()) << "the server ends with the run";
}

TEST_F(Live, ChangesNoBitsAndEndsWithTheRun) {
  const Arguments steps = {"--max-steps", "8", "--local-ranks", "2"};
  const Outcome plain = training_.train("plain", steps);
  EXPECT_THAT(plain.output, Not(HasSubstr(kAddress)));
  const Outcome live = training_.train("live", steps + Arguments{"--live", "0"});
  EXPECT_THAT(live.output, HasSubstr(kAddress));
  training_.expect_same("live", "plain", "final");
  EXPECT_THAT(training_.directory().read("live/config.toml"), HasSubstr("\nlive = 0\n"));
  EXPECT_THAT(training_.directory().read("plain/config.toml"), Not(HasSubstr("\nlive")));
}

TEST_F(Live, ADryRunHasNothingToServe) {
  const Outcome dry =
      run_program(training_.command("dry", {"--max-steps", "1", "--dry-run", "--live"}));
  EXPECT_EQ(dry.code, 2) << dry;
  EXPECT_THAT(dry.errors, HasSubstr("--live"));
}

}  // namespace
}  // namespace terrace
