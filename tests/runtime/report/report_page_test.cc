#include "runtime/report/report_page.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/runtime/report/well_formed.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace::report {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr std::size_t kMostBytes = 3'000'000;
const std::string kHostile = "</script><script>alert('x')</script>\" onload=\"\xFF &amp; ]]>";

std::string row(int step) {
  const double wave = 0.001 * (step * 7919 % 1000);
  return fmt::format(
      "{{\"step\":{0},\"loss\":{1},\"grad_norm\":{2},\"learning_rate\":0.001,\"loss_scale\":1.0,"
      "\"tokens\":256,\"tokens_per_s\":{3},\"step_s\":{4},\"time\":1795947970.5,"
      "\"host_peak_bytes\":1048576,\"nvme_read_bytes\":4096,\"busy_s\":{{\"compute\":0.01,"
      "\"read\":0.002}}}}\n",
      step, 5 - wave, 1 + wave, 256 / (0.01 + wave), 0.01 + wave);
}

std::string rows(int count) {
  std::string text;
  for (int step = 1; step <= count; ++step) text += row(step);
  return text;
}

std::string event(int number, int track, double at, double length) {
  return fmt::format(
      ",\n{{\"name\":\"forward {}\",\"cat\":\"compute\",\"ph\":\"X\",\"pid\":0,\"tid\":{},"
      "\"ts\":{:.3f},\"dur\":{:.3f},\"args\":{{\"step\":{}}}}}",
      number, track, at, length, 1 + number / 20000);
}

std::string large_trace(int events) {
  std::string text =
      "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
      "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":0,\"tid\":0,\"args\":{\"name\":\"r\"}}";
  for (int i = 0; i < events; ++i) text += event(i, i % 8, 3.0 * i, 2.5);
  return text + "\n]}\n";
}

class ReportPage : public testing::Test {
 protected:
  std::string page(const std::vector<std::string>& names) const {
    std::vector<std::string> paths;
    for (const std::string& name : names) paths.push_back(directory_.path(name));
    const std::string html = report_page(read_runs(paths));
    EXPECT_EQ(problem_of_xml(html), "");
    EXPECT_LT(html.size(), kMostBytes);
    EXPECT_THAT(html, HasSubstr(kPageMark));
    return html;
  }

  TemporaryDirectory directory_;
};

TEST_F(ReportPage, HundredThousandStepsStaySmall) {
  directory_.write("long/metrics.jsonl", rows(100000));
  directory_.write("long/trace.json", large_trace(100000));
  const std::string html = page({"long"});
  EXPECT_LT(html.size(), 1'000'000U);
  EXPECT_THAT(html, HasSubstr("Each point is the mean of up to 278 values"));
  EXPECT_THAT(html, HasSubstr("The first 3 of 5 traced steps are drawn"));
}

TEST_F(ReportPage, ManyRunsStaySmall) {
  directory_.write("run/metrics.jsonl", rows(2000));
  directory_.write("run/trace.json", large_trace(20000));
  const std::string html = page(std::vector<std::string>(16, "run"));
  EXPECT_THAT(html, HasSubstr("run (16)"));
}

TEST_F(ReportPage, TextsOfARunNeverBecomeMarkup) {
  std::string quoted;
  for (const char c : kHostile) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) < 0x80) quoted += c;
  }
  const std::string name = "a&b<i>\"'\xFE";
  directory_.write(
      name + "/metrics.jsonl",
      row(1) + fmt::format("{{\"step\":2,\"loss\":3,\"validation_loss/{}\":2}}\n", quoted));
  directory_.write(
      name + "/run.json",
      fmt::format("{{\"version\":\"{0}\",\"started\":\"{0}\",\"host\":{{\"cpu\":\"{0}\","
                  "\"{0}\":\"{0}\"}},\"command_line\":[\"{0}\"],\"program\":\"{0}\","
                  "\"prediction\":{{\"step_s\":1,\"bottleneck\":\"{0}\"}},"
                  "\"memory\":[{{\"name\":\"{0}\",\"peak_bytes\":5,\"accounts\":{{\"{0}\":5}}}}],"
                  "\"rank_shares\":{{\"micro_batches\":[1,2],\"origin\":\"{0}\"}},"
                  "\"waits\":{{\"steps\":2,\"seconds\":1,\"compute_waited_s\":{{\"{0}\":0.5}}}},"
                  "\"reasons\":{{\"tiers\":[{{\"name\":\"{0}\"}}],\"units\":[{{\"name\":\"{0}\","
                  "\"states\":[{{\"state\":\"{0}\",\"home\":\"{0}\",\"cause\":\"{0}\"}}],"
                  "\"updates\":[{{\"where\":\"{0}\",\"when\":\"{0}\"}}],"
                  "\"loads\":[{{\"of\":\"{0}\",\"limit\":\"{0}\"}}]}}]}}}}",
                  quoted));
  directory_.write(name + "/config.toml", "data = ['''" + kHostile.substr(0, 20) + "''']\n");
  directory_.write(
      name + "/trace.json",
      fmt::format("{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":0,\"tid\":0,\"args\":{{\"name\":"
                  "\"{0}\"}}}}\n{{\"name\":\"{0}\",\"cat\":\"compute\",\"ph\":\"X\",\"pid\":0,"
                  "\"tid\":0,\"ts\":0,\"dur\":9,\"args\":{{\"step\":1}}}}\n",
                  quoted));
  const std::string html = page({name, name});
  EXPECT_THAT(html, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(html, Not(HasSubstr("\" onload=")));
  EXPECT_THAT(html, HasSubstr("a&amp;b&lt;i&gt;&quot;&#39;\xEF\xBF\xBD"));
}

TEST_F(ReportPage, OneFileIsEnough) {
  directory_.write("rows/metrics.jsonl", rows(3) + "{\"step\":4,\"lo");
  const std::string with_rows = page({"rows"});
  for (const char* const said :
       {"run.json is missing", "config.toml is missing", "The last line of metrics.jsonl",
        "This run has no trace", "--trace-steps 5:7", "run.json has no reasons"}) {
    EXPECT_THAT(with_rows, HasSubstr(said));
  }
  directory_.write("facts/run.json", "{\"version\":\"1\"}");
  const std::string with_facts = page({"facts"});
  EXPECT_THAT(with_facts, HasSubstr("metrics.jsonl is missing"));
  EXPECT_THAT(with_facts, HasSubstr("There are no rows to draw."));
  page({"rows", "facts"});
}

// Returns a row of a step of two seconds, with the waits of its ranks.
std::string row_with_waits(int step, const std::string& waited, const std::string& waited_for) {
  return fmt::format(
      "{{\"step\":{},\"loss\":3,\"step_s\":2,\"busy_s\":{{\"compute\":1}},"
      "\"collective_wait_s\":[{}],\"collective_wait_by_cause_s\":[{}]}}\n",
      step, waited, waited_for);
}

TEST_F(ReportPage, SaysWhichRankTheOthersWaitFor) {
  directory_.write("run/metrics.jsonl", row_with_waits(1, "0.5,0,0.5,0.25", "0.25,1,0,0") +
                                            row_with_waits(2, "0.5,0,0.5,0.75", "0.75,1,0,0"));
  directory_.write("run/config.toml", "zero_partition = \"hpz\"\n");
  directory_.write("run/run.json",
                   "{\"mesh\":{\"ranks\":4,\"data\":4,\"islands\":2,\"tensor\":1,\"pipeline\":1},"
                   "\"rank_shares\":{\"micro_batches\":[3,1,2,2],\"origin\":\"measured\"}}");
  const std::string html = page({"run"});
  for (const char* const said :
       {"<h4>Ranks</h4>", "4 ranks: 4 data-parallel x 1 tensor-parallel x 1 pipeline stage.",
        "2 islands of 2 data-parallel ranks, and parameters are sharded in each of them.",
        "Micro-batches of each step by data-parallel rank (measured)",
        "<data value=\"0.375\">37.5 %</data>",
        "The ranks&#39; collectives wait for other ranks 19 % of the time, for no one rank most"}) {
    EXPECT_THAT(html, HasSubstr(said));
  }
  // The other three ranks waited for rank 1 for 2 s in all, of 4 s.
  const std::size_t at = html.find("Waits between ranks");
  ASSERT_NE(at, std::string::npos);
  EXPECT_THAT(html.substr(at, 3000), HasSubstr("<data value=\"2\">2 s</data>"));
  EXPECT_THAT(html.substr(at, 3000), HasSubstr("16.7 %"));
}

TEST_F(ReportPage, ManyRanksShareARow) {
  std::string waits = "1";
  for (int rank = 1; rank < 1000; ++rank) waits += ",0.5";
  directory_.write("run/metrics.jsonl", row_with_waits(1, waits, waits));
  const std::string html = page({"run"});
  EXPECT_THAT(html, HasSubstr("the other 985, added up"));
  EXPECT_LT(html.size(), 100'000U);
  directory_.write("alone/metrics.jsonl", rows(2));
  EXPECT_THAT(page({"alone"}), Not(HasSubstr("<h4>Ranks</h4>")));
}

TEST_F(ReportPage, DrawsTheGradientNoiseScaleWhereItIsMeasured) {
  directory_.write("run/metrics.jsonl",
                   "{\"step\":1,\"loss\":3,\"gradient_noise_scale\":5.5,\"micro_batches\":2}\n"
                   "{\"step\":2,\"loss\":2,\"gradient_noise_scale\":6.5,\"micro_batches\":4}\n");
  const std::string html = page({"run"});
  EXPECT_THAT(html, HasSubstr("Gradient noise scale"));
  EXPECT_THAT(html, HasSubstr("Micro-batches of a rank"));
  directory_.write("other/metrics.jsonl", rows(2));
  EXPECT_THAT(page({"other"}), Not(HasSubstr("Gradient noise scale")));
}

TEST_F(ReportPage, BudgetsFarAboveThePeakDoNotHideTheAccounts) {
  const auto write = [&](const std::string& name, int budget) {
    directory_.write(name + "/run.json",
                     fmt::format("{{\"memory\":[{{\"name\":\"host\",\"peak_bytes\":1000,"
                                 "\"budget_bytes\":{},\"accounts\":{{\"staging\":900}}}}]}}",
                                 budget));
  };
  write("near", 2000);
  write("far", 100000);
  EXPECT_THAT(page({"near"}), HasSubstr("budget 1.95 KiB (the line), 50.0 % used"));
  EXPECT_THAT(page({"far"}), HasSubstr("budget 97.7 KiB (beyond the bar), 1.0 % used"));
  EXPECT_THAT(page({"far"}), HasSubstr("<data value=\"100\">100 B</data>")) << "packing";
}

TEST_F(ReportPage, RowsMayLackEveryColumn) {
  directory_.write("bare/metrics.jsonl", "{\"step\":1}\n{\"step\":2,\"loss\":null}\n");
  const std::string html = page({"bare", "bare"});
  EXPECT_THAT(html, HasSubstr("The loss of 2 steps is not a number"));
}

TEST_F(ReportPage, ReachesForNothingOutside) {
  directory_.write("run/metrics.jsonl", rows(5));
  std::string html = page({"run", "run"});
  for (const std::string allowed : {"http://www.w3.org/1999/xhtml", "http-equiv"}) {
    for (std::size_t at = html.find(allowed); at != std::string::npos; at = html.find(allowed)) {
      html.erase(at, allowed.size());
    }
  }
  for (const char* const outside : {"http", "//cdn", " src=", "@import", "url(", "fetch("}) {
    EXPECT_EQ(html.find(outside), std::string::npos) << outside;
  }
  EXPECT_THAT(html, HasSubstr("default-src 'none'"));
}

TEST_F(ReportPage, PathsThatAreNoRunsAreRefused) {
  TERRACE_EXPECT_THROW_WITH(read_runs({directory_.path("none")}), ConfigError, "does not exist");
  directory_.write("run/metrics.jsonl", rows(1));
  directory_.write("run/final/config.json", "{}");
  TERRACE_EXPECT_THROW_WITH(read_runs({directory_.path("run/final")}), ConfigError,
                            "did you mean " + directory_.path("run") + "?");
  TERRACE_EXPECT_THROW_WITH(read_runs({directory_.path("run/metrics.jsonl")}), ConfigError,
                            "give its directory: " + directory_.path("run"));
  TERRACE_EXPECT_THROW_WITH(read_runs({directory_.path("")}), ConfigError,
                            "neither metrics.jsonl nor run.json");
}

}  // namespace
}  // namespace terrace::report
