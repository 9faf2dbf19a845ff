#include "runtime/report/prometheus_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>

#include "tests/runtime/temporary_directory.h"

namespace terrace::report {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;
using testing::StartsWith;

// Reads a text strictly: each metric has HELP and TYPE once, before its samples, which stand
// together.
std::map<std::string, std::string> read_exposition(const std::string& text) {
  const std::string label = R"rx([a-z]+="([^"\]|\\["n\])*")rx";
  const std::string sample = "[a-z_]+\\{" + label + "(," + label + ")*\\} [^ ]+";
  const std::string help = "# HELP ";
  std::map<std::string, std::string> samples;
  std::set<std::string> seen;
  std::string metric;
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);
  EXPECT_EQ(line, kPrometheusMark);
  while (std::getline(lines, line)) {
    if (line.starts_with(help)) {
      EXPECT_THAT(line, MatchesRegex("# HELP [a-z_]+ .+"));
      metric = line.substr(help.size(), line.find(' ', help.size()) - help.size());
      EXPECT_TRUE(seen.insert(metric).second) << "twice: " << metric;
    } else if (line.starts_with("# TYPE ")) {
      EXPECT_EQ(line, "# TYPE " + metric + " gauge");
    } else {
      EXPECT_THAT(line, MatchesRegex(sample));
      EXPECT_THAT(line, StartsWith(metric + "{"));
      const std::size_t space = line.rfind(' ');
      EXPECT_TRUE(samples.emplace(line.substr(0, space), line.substr(space + 1)).second)
          << "twice: " << line;
    }
  }
  return samples;
}

TEST(PrometheusText, HasTheLastRow) {
  const TemporaryDirectory directory;
  directory.write("a/metrics.jsonl",
                  "{\"step\":1,\"loss\":9,\"validation_loss\":4.5}\n"
                  "{\"step\":2,\"loss\":2.423185553822827,\"grad_norm\":null,"
                  "\"host_peak_bytes\":1e15,\"busy_s\":{\"read\":0.5}}\n{\"step\":3,");
  const auto samples = read_exposition(prometheus_text(read_runs({directory.path("a")})));
  EXPECT_EQ(samples.at("terrace_step{run=\"a\"}"), "2");
  EXPECT_EQ(samples.at("terrace_loss_nats_per_token{run=\"a\"}"), "2.423185553822827");
  EXPECT_EQ(samples.at("terrace_gradient_norm{run=\"a\"}"), "NaN");
  EXPECT_EQ(samples.at("terrace_tier_peak_bytes{run=\"a\",tier=\"host\"}"), "1000000000000000");
  EXPECT_EQ(samples.at("terrace_step_lane_busy_seconds{run=\"a\",lane=\"read\"}"), "0.5");
  EXPECT_EQ(samples.at("terrace_validation_loss_nats_per_token{run=\"a\",set=\"\"}"), "4.5");
  EXPECT_EQ(samples.size(), 6U);
}

TEST(PrometheusText, GroupsRunsAndEscapesNames) {
  const TemporaryDirectory directory;
  const std::string name = "a\"b\\c\nd\xFF";
  directory.write(name + "/metrics.jsonl", "{\"step\":1,\"validation_loss/q\\\"s\":1}\n");
  directory.write("plain/metrics.jsonl", "{\"step\":7}\n");
  const std::string text =
      prometheus_text(read_runs({directory.path(name), directory.path("plain")}));
  const auto samples = read_exposition(text);
  EXPECT_EQ(samples.at("terrace_step{run=\"a\\\"b\\\\c\\nd\xEF\xBF\xBD\"}"), "1");
  EXPECT_EQ(samples.at("terrace_step{run=\"plain\"}"), "7");
  EXPECT_EQ(samples.size(), 3U);
  EXPECT_THAT(text, Not(HasSubstr("loss_scale")));
}

TEST(PrometheusText, OfARunWithoutRowsIsEmpty) {
  const TemporaryDirectory directory;
  directory.write("a/run.json", "{}");
  EXPECT_TRUE(read_exposition(prometheus_text(read_runs({directory.path("a")}))).empty());
}

}  // namespace
}  // namespace terrace::report
