#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/report/config_values.h"
#include "runtime/report/lane_trace.h"
#include "runtime/report/metrics_table.h"
#include "runtime/report/plan_words.h"
#include "runtime/report/run_facts.h"
#include "tests/runtime/temporary_directory.h"

// Reading the files of a run.
namespace terrace::report {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class RunFiles : public testing::Test {
 protected:
  MetricsTable metrics(const std::string& text) {
    return read_metrics(directory_.write("metrics.jsonl", text), remarks_);
  }
  LaneTrace trace(const std::string& text) {
    return read_lane_trace(directory_.write("trace.json", text), remarks_);
  }

  TemporaryDirectory directory_;
  std::vector<std::string> remarks_;
};

TEST_F(RunFiles, RowsBecomeColumns) {
  const MetricsTable table = metrics(
      "{\"step\":1,\"loss\":2.5,\"busy_s\":{\"read\":0.25}}\n"
      "{\"step\":2,\"loss\":null,\"validation_loss\":3}\n");
  EXPECT_THAT(remarks_, IsEmpty());
  EXPECT_EQ(table.rows(), 2U);
  EXPECT_EQ(table.column("loss")[0], 2.5);
  EXPECT_TRUE(std::isnan(table.column("loss")[1]));
  EXPECT_EQ(table.column("busy_s/read")[0], 0.25);
  EXPECT_TRUE(std::isnan(table.last("busy_s/read")));
  EXPECT_TRUE(std::isnan(table.column("validation_loss")[0]));
  EXPECT_EQ(table.last("validation_loss"), 3);
  EXPECT_TRUE(table.column("none").empty());
}

TEST_F(RunFiles, ListsAreAddedUpFromTheLastChangeOfTheirLengthOn) {
  const MetricsTable table = metrics(
      "{\"step\":1}\n"
      "{\"step\":2,\"waits\":[1,2,4],\"same\":[1,0.5]}\n"
      "{\"step\":3,\"waits\":[0.5,0.25],\"names\":[\"a\"]}\n"
      "{\"step\":4,\"same\":[1,0.5]}\n"
      "{\"step\":5,\"waits\":[0.5,0.25]}\n");
  EXPECT_EQ(table.rows(), 5U);
  EXPECT_THAT(table.list_sums("waits").sums, ElementsAre(1, 0.5));
  EXPECT_EQ(table.list_sums("waits").first_row, 2U);
  EXPECT_THAT(table.list_sums("same").sums, ElementsAre(2, 1));
  EXPECT_EQ(table.list_sums("same").first_row, 0U) << "rows before the first list count";
  EXPECT_THAT(table.list_sums("names").sums, IsEmpty());
}

TEST_F(RunFiles, ATornLastRowIsLeftOut) {
  const MetricsTable table = metrics("{\"step\":1,\"loss\":2}\n{\"step\":2,\"lo");
  EXPECT_EQ(table.rows(), 1U);
  EXPECT_THAT(remarks_, ElementsAre(HasSubstr("last line of metrics.jsonl is incomplete")));
}

TEST_F(RunFiles, LinesThatAreNoRowsAreCounted) {
  const std::string deep = std::string(100000, '[') + "\n";
  const MetricsTable table =
      metrics("nonsense\n" + deep + "[1]\n{\"loss\":1}\n{\"step\":2,\"loss\":2}\n");
  EXPECT_EQ(table.rows(), 1U);
  EXPECT_THAT(remarks_, ElementsAre(HasSubstr("4 lines of metrics.jsonl cannot be read")));
}

TEST_F(RunFiles, MissingAndEmptyRowsAreSaid) {
  EXPECT_EQ(read_metrics(directory_.path("none"), remarks_).rows(), 0U);
  EXPECT_THAT(remarks_, ElementsAre(HasSubstr("metrics.jsonl is missing")));
  remarks_.clear();
  EXPECT_EQ(metrics("").rows(), 0U);
  EXPECT_THAT(remarks_, ElementsAre(HasSubstr("no complete row")));
}

TEST_F(RunFiles, FactsOfAWrongTypeAreMissing) {
  const RunFacts facts = read_run_facts(
      directory_.write("run.json",
                       R"({"version":7,"host":[1],"command_line":["a",3,"b"],"memory":[5,{"name":)"
                       R"("host","peak_bytes":10,"budget_bytes":null,"accounts":{"staging":4}}],)"
                       R"("prediction":{"step_s":"fast"},"waits":{"seconds":0},"reasons":"none",)"
                       R"("mesh":{"ranks":"two"},"rank_shares":{"micro_batches":[1,"x"]},)"
                       R"("measured":{"step_s":0.5,"steps":3}})"),
      remarks_);
  EXPECT_THAT(remarks_, IsEmpty());
  EXPECT_EQ(facts.version, "");
  EXPECT_THAT(facts.host, IsEmpty());
  EXPECT_THAT(facts.command_line, ElementsAre("a", "b"));
  ASSERT_EQ(facts.memory.size(), 1U);
  EXPECT_EQ(facts.memory[0].peak_bytes, 10);
  EXPECT_FALSE(facts.memory[0].budget_bytes.has_value());
  EXPECT_FALSE(facts.prediction.has_value());
  EXPECT_FALSE(facts.waits.has_value());
  EXPECT_FALSE(facts.mesh.has_value());
  EXPECT_FALSE(facts.shares.has_value());
  EXPECT_EQ(facts.reasons, "");
  EXPECT_EQ(facts.measured->step_s, 0.5);
}

TEST_F(RunFiles, AnIncompleteRunFileIsSaid) {
  read_run_facts(directory_.write("run.json", "{\"version\":"), remarks_);
  read_run_facts(directory_.path("none"), remarks_);
  EXPECT_THAT(remarks_, ElementsAre(HasSubstr("not complete JSON"), HasSubstr("is missing")));
}

// Lines of a trace, as a run writes them.
std::string track_name(int track, const std::string& name) {
  return fmt::format(
      "{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":0,\"tid\":{},\"args\":{{\"name\":\"{}\"}}}}"
      ",\n",
      track, name);
}

std::string slice(const std::string& name, const std::string& category, int begin_us,
                  int duration_us, const std::string& arguments) {
  return fmt::format(
      "{{\"name\":\"{}\",\"cat\":\"{}\",\"ph\":\"X\",\"pid\":0,\"tid\":0,\"ts\":{}.0,"
      "\"dur\":{}.0,\"args\":{{{}}}}},\n",
      name, category, begin_us, duration_us, arguments);
}

const std::string kTraceHead = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" +
                               track_name(0, "compute") + track_name(3, "read");
const std::string kTraceEvents =
    "{\"name\":\"read "
    "a\",\"cat\":\"read\",\"ph\":\"b\",\"id\":\"1\",\"pid\":0,\"tid\":3,\"ts\":0.0,"
    "\"args\":{}},\n" +
    slice("wait for read a", "wait", 0, 40, "") +
    slice("forward 0", "compute", 40, 10, "\"step\":5") +
    slice("wait for gone", "wait", 50, 20, "") +
    slice("forward 0", "compute", 70, 30, "\"step\":6");

TEST_F(RunFiles, TracesHaveStepsAndCausesOfWaits) {
  const LaneTrace read = trace(kTraceHead + kTraceEvents + "]}\n");
  EXPECT_THAT(remarks_, IsEmpty());
  ASSERT_EQ(read.lanes.size(), 1U) << "reads have no slice in this trace";
  EXPECT_EQ(read.lanes[0].name, "compute");
  EXPECT_EQ(read.lanes[0].slices.size(), 4U);
  ASSERT_EQ(read.steps.size(), 2U);
  EXPECT_EQ(read.steps[0].begin_us, 40) << "before that, a step ran that is not traced";
  EXPECT_EQ(read.steps[0].end_us, 70);
  EXPECT_EQ(read.steps[1].step, 6);
  EXPECT_EQ(read.steps[1].end_us, 100);
  const std::vector<LaneWait> waits = waits_in(read);
  ASSERT_EQ(waits.size(), 2U);
  EXPECT_EQ(waits[0].cause, "read");
  EXPECT_NEAR(waits[0].seconds, 40e-6, 1e-12);
  EXPECT_EQ(waits[1].cause, "other");
}

TEST_F(RunFiles, TornTracesAreReadAsFarAsTheyGo) {
  const std::string whole = kTraceHead + kTraceEvents;
  const LaneTrace read = trace(whole.substr(0, whole.size() - 30));
  EXPECT_THAT(remarks_, ElementsAre(HasSubstr("1 line of trace.json")));
  EXPECT_EQ(read.steps.size(), 1U);
  remarks_.clear();
  EXPECT_TRUE(trace("{\"traceEvents\":[\n{\"ph\":\"X\"}\n{\"tid\":true}\n").is_empty());
  EXPECT_THAT(remarks_, ElementsAre(HasSubstr("2 lines")));
  remarks_.clear();
  EXPECT_TRUE(trace("").is_empty());
  EXPECT_THAT(remarks_, ElementsAre(HasSubstr("no op of a traced step")));
}

TEST(ConfigValues, ComparesWhatIsSet) {
  std::vector<std::string> remarks;
  const ConfigValues one =
      read_config_values("seed = 1\nrun_dir = \"a\"\ndata = [\"x\"]\nnvme = [\"<b>\"]\n", remarks);
  const ConfigValues two =
      read_config_values("seed = 2\nrun_dir = \"b\"\ndata = [\"x\"]\n", remarks);
  EXPECT_THAT(remarks, IsEmpty());
  const std::vector<DifferingOption> options = differing_options({one, two});
  ASSERT_EQ(options.size(), 2U);
  EXPECT_EQ(options[0].key, "nvme");
  EXPECT_THAT(options[0].values[0], HasSubstr("<b>"));
  EXPECT_EQ(options[0].values[1], "not set");
  EXPECT_THAT(options[1].values, ElementsAre("1", "2"));
  read_config_values("seed = ", remarks);
  EXPECT_THAT(remarks, ElementsAre(HasSubstr("config.toml is not TOML")));
}

TEST(PlanWords, UnitsWithEqualReasonsStandTogether) {
  const PlanWords words = plan_words(R"({"tiers":[{"name":"host","gave_way":3,"could_give_way":9,
    "budget_bytes":1048576,"bytes_with_one_less":2097152}],"units":[
    {"name":"the embedding","states":[{"state":"parameters","home":"nvme","bytes":5,
      "cause":"asked"}]},
    {"name":"block 0","recomputed":true,"recompute_cause":"first",
      "states":[{"state":"parameters","home":"nvme","bytes":7,"cause":"gave_way",
      "for_tier":"host","place":1}],"updates":[{"where":"host","when":"after_norm"}],
      "loads":[{"of":"optimizer_state","for_update":true,"count":2,"units_ahead":3,
      "limit":"room","tier":"host","lacking_bytes":1024}]},
    {"name":"block 1","states":[{"state":"parameters","home":"nvme","bytes":7,"cause":"gave_way",
      "for_tier":"host","place":2}],"updates":[{"where":"host","when":"after_norm"}]},
    {"name":"block 3","states":"none","updates":[{"where":"host","when":"after_norm"}]}]})");
  EXPECT_THAT(
      words.tiers,
      ElementsAre("For the host's budget of 1.00 MiB, 3 of the 9 states that can give "
                  "way had to. If one less gave way, the step would need at least 2.00 MiB."));
  ASSERT_EQ(words.states.size(), 3U);
  EXPECT_EQ(words.states[0].state, "activations");
  EXPECT_EQ(words.states[1].reason, "you named this tier");
  EXPECT_EQ(words.states[2].units, "blocks 0 to 1");
  EXPECT_EQ(words.states[2].reason, "it gave way for the budget of the host");
  ASSERT_EQ(words.updates.size(), 1U);
  EXPECT_EQ(words.updates[0].units, "blocks 0 to 1, block 3");
  ASSERT_EQ(words.loads.size(), 1U);
  EXPECT_EQ(words.loads[0].what, "2 x optimizer state for the update");
  EXPECT_EQ(words.loads[0].limit, "the host lacks 1.00 KiB for an earlier load");
  EXPECT_TRUE(plan_words("{}").is_empty());
  EXPECT_TRUE(plan_words("not json").is_empty());
}

}  // namespace
}  // namespace terrace::report
