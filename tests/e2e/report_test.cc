#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/e2e/tiny_training.h"
#include "tests/runtime/report/well_formed.h"

namespace terrace {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class Report : public testing::Test {
 protected:
  Outcome report(const std::vector<std::string>& runs, const Arguments& more = {}) const {
    Arguments arguments = {"report"};
    for (const std::string& run : runs) arguments.push_back(training_.path(run));
    return run_program(arguments + more);
  }

  std::string page(const std::vector<std::string>& runs) const {
    const Outcome outcome = report(runs, {"--output", training_.path("report.html")});
    EXPECT_EQ(outcome.code, 0) << outcome;
    EXPECT_THAT(outcome.output, HasSubstr("wrote " + training_.path("report.html")));
    const std::string html = training_.directory().read("report.html");
    EXPECT_EQ(report::problem_of_xml(html), "");
    return html;
  }

  const TinyTraining training_;
  const Arguments on_nvme_ = {"--device-memory",
                              "4MiB",
                              "--place-parameters",
                              "nvme",
                              "--place-optimizer",
                              "nvme",
                              "--nvme",
                              training_.path("nvme"),
                              "--max-steps",
                              "6",
                              "--eval-every",
                              "3"};
};

// Returns how a page shows a number, with its exact value.
std::string value_element(double value) { return fmt::format("<data value=\"{}\">", value); }

TEST_F(Report, ShowsARunWithItsTrace) {
  training_.train("run", on_nvme_ + Arguments{"--trace-steps", "2:4"});
  const std::string html = page({"run"});
  for (const char* const heading : {"<h1>Training report</h1>",
                                    "<h2>Run run</h2>",
                                    ">Curves</h3>",
                                    ">Where the time went</h3>",
                                    ">Memory</h3>",
                                    ">Prediction and links</h3>",
                                    ">Reasons of the plan</h3>",
                                    ">Configuration and machine</h3>",
                                    "<h4>Timeline of the lanes</h4>",
                                    "<figcaption>Step 2",
                                    "<figcaption>Step 4",
                                    "Waits of the compute lane by cause, in 6 steps",
                                    "Waits in the traced steps",
                                    "Planned memory by account",
                                    "predicted before the run",
                                    "optimizer state",
                                    "you named this tier",
                                    "max_steps = 6",
                                    "--trace-steps 2:4",
                                    ">waits "}) {
    EXPECT_THAT(html, HasSubstr(heading));
  }
  EXPECT_THAT(html, Not(HasSubstr("class=\"remarks\""))) << "nothing is missing";
  const MetricsRow last = training_.rows("run").back();
  for (const char* const column : {"loss", "validation_loss", "host_peak_bytes"}) {
    EXPECT_THAT(html, HasSubstr(value_element(last.columns.at(column)))) << column;
  }
  const double reads = sum_of(training_.rows("run"), "nvme_read_bytes");
  EXPECT_THAT(html, HasSubstr(value_element(reads)));
  const json run = json::parse(training_.directory().read("run/run.json"));
  EXPECT_THAT(html, HasSubstr(value_element(run.at("prediction").at("step_s"))));
  for (const json& tier : run.at("memory")) {
    const auto peak = tier.at("peak_bytes").get<double>();
    if (peak == 0) continue;
    EXPECT_THAT(html, HasSubstr(value_element(peak)));
  }
  EXPECT_GT(run.at("waits").at("compute_waited_s").at("start"), 0);
}

TEST_F(Report, ComparesRuns) {
  training_.train("one", {"--max-steps", "3"});
  training_.train("two", {"--max-steps", "4", "--learning-rate", "1e-3"});
  const std::string html = page({"one", "two"});
  EXPECT_THAT(html, AllOf(HasSubstr("<h2>Comparison</h2>"), HasSubstr("<h2>Run one</h2>"),
                          HasSubstr("<code>learning_rate</code>"), HasSubstr("<code>0.001</code>"),
                          HasSubstr("<code>max_steps</code>"), Not(HasSubstr("<code>run_dir"))));
  for (const char* const run : {"one", "two"}) {
    EXPECT_THAT(html, HasSubstr(value_element(training_.rows(run).back().columns.at("loss"))));
  }
  EXPECT_THAT(html, HasSubstr("This run has no trace"));
}

TEST_F(Report, GivesTheLastRowToPrometheus) {
  training_.train("run", {"--max-steps", "2"});
  const Outcome outcome = report({"run"}, {"--format", "prometheus"});
  EXPECT_EQ(outcome.code, 0) << outcome;
  const double loss = training_.rows("run").back().columns.at("loss");
  EXPECT_THAT(outcome.output, HasSubstr("# TYPE terrace_loss_nats_per_token gauge\n"
                                        "terrace_loss_nats_per_token{run=\"run\"} " +
                                        json(loss).dump() + "\n"));
  const Arguments into = {"--format", "prometheus", "--output", training_.path("terrace.prom")};
  EXPECT_EQ(report({"run"}, into).code, 0);
  EXPECT_EQ(training_.directory().read("terrace.prom"), outcome.output);
}

TEST_F(Report, RefusesWhatItCannotDo) {
  const std::string config = training_.directory().write("run/config.toml", "seed = 1\n");
  const Arguments into = {"--output", training_.path("report.html")};
  const auto expect_refused = [](const Outcome& outcome, const std::string& text) {
    EXPECT_EQ(outcome.code, 2) << outcome;
    EXPECT_THAT(outcome.errors, HasSubstr(text));
  };
  expect_refused(report({"none"}, into), "none does not exist");
  expect_refused(report({"run"}, into), "neither metrics.jsonl nor run.json");
  expect_refused(report({}, into), "RUN");
  training_.directory().write("run/metrics.jsonl", "{\"step\":1,\"loss\":2}\n");
  expect_refused(report({"run"}), "--output is missing");
  expect_refused(report({"run"}, {"--output", config}), "is not a report");
  expect_refused(report({"run"}, {"--format", "pdf"}), "html");
  EXPECT_FALSE(std::filesystem::exists(training_.path("report.html")));
  EXPECT_EQ(report({"run"}, into).code, 0) << "a row is enough";
  EXPECT_EQ(report({"run"}, into).code, 0) << "a report is replaced";
}

TEST_F(Report, IsExplainedByItsHelp) {
  const Outcome help = run_program({"report", "--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.output, AllOf(HasSubstr("RUN..."), HasSubstr("--output FILE"),
                                 HasSubstr("--format html|prometheus")));
}

}  // namespace
}  // namespace terrace
