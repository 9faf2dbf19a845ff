#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/e2e/tiny_training.h"

namespace terrace {
namespace {

using nlohmann::json;
using testing::HasSubstr;

struct Slice {
  std::string name;
  double begin_us = 0;
  double end_us = 0;
};

struct Trace {
  std::map<std::string, std::vector<Slice>> tracks;  // complete slices by the track's name
  std::map<std::string, int> open_async;             // by id: begins less ends
  std::set<int> steps;
  int waits = 0;
};

Trace read_trace(const std::string& text) {
  const json document = json::parse(text);
  Trace trace;
  std::map<int, std::string> names;
  for (const json& event : document.at("traceEvents")) {
    const std::string phase = event.at("ph");
    const int track = event.at("tid");
    if (phase == "M") {
      if (event.at("name") == "thread_name") names[track] = event.at("args").at("name");
      continue;
    }
    if (event.at("args").contains("step"))
      trace.steps.insert(event.at("args").at("step").get<int>());
    const double begin = event.at("ts");
    if (phase != "X") {
      trace.open_async[event.at("id")] += phase == "b" ? 1 : -1;
      continue;
    }
    if (event.at("cat") == "wait") ++trace.waits;
    trace.tracks[names.at(track)].push_back(
        {event.at("name"), begin, begin + event.at("dur").get<double>()});
  }
  return trace;
}

class TraceSteps : public testing::Test {
 protected:
  const TinyTraining training_;
  const Arguments all_on_nvme_ = {"--device-memory",
                                  "4MiB",
                                  "--place-parameters",
                                  "nvme",
                                  "--place-optimizer",
                                  "nvme",
                                  "--place-activations",
                                  "host",
                                  "--nvme",
                                  training_.path("nvme"),
                                  "--max-steps",
                                  "6"};
};

TEST_F(TraceSteps, HasATrackPerLaneWithoutOverlapAndShowsWaits) {
  const Outcome told = training_.train("run", all_on_nvme_ + Arguments{"--trace-steps", "2:4"});
  EXPECT_THAT(told.output, HasSubstr("trace of steps 2 to 4: " + training_.path("run/trace.json")));
  Trace trace = read_trace(training_.directory().read("run/trace.json"));
  for (const char* lane : {"compute", "upload", "download", "read", "write", "update"}) {
    ASSERT_FALSE(trace.tracks[lane].empty()) << lane;
    std::vector<Slice>& slices = trace.tracks[lane];
    std::sort(slices.begin(), slices.end(),
              [](const Slice& a, const Slice& b) { return a.begin_us < b.begin_us; });
    for (std::size_t i = 1; i < slices.size(); ++i) {
      // Times are rounded to a nanosecond.
      EXPECT_LE(slices[i - 1].end_us, slices[i].begin_us + 0.002)
          << lane << ": " << slices[i - 1].name << ", " << slices[i].name;
    }
  }
  for (const auto& [id, open] : trace.open_async) EXPECT_EQ(open, 0) << id;
  EXPECT_FALSE(trace.open_async.empty());
  // The updates of step 1 run under step 2.
  EXPECT_EQ(trace.steps, (std::set<int>{1, 2, 3, 4}));
  EXPECT_GT(trace.waits, 0);
}

TEST_F(TraceSteps, OfARunThatFailsAreAsWhole) {
  const Outcome outcome = run_program(training_.command(
      "run", Arguments{"--max-steps", "30", "--learning-rate", "1e30", "--trace-steps", "1:30"}));
  EXPECT_EQ(outcome.code, 6) << outcome;
  const Trace trace = read_trace(training_.directory().read("run/trace.json"));
  EXPECT_FALSE(trace.steps.empty());
}

TEST_F(TraceSteps, TracingChangesNoBits) {
  training_.train("plain", all_on_nvme_);
  training_.train("traced", all_on_nvme_ + Arguments{"--trace-steps", "1:6"});
  training_.expect_same("traced", "plain", "final");
}

TEST_F(TraceSteps, ARunThatGoesOnBehindThemKeepsTheirTrace) {
  const Arguments traced = all_on_nvme_ + Arguments{"--trace-steps", "1:2"};
  training_.train("run", traced + Arguments{"--stop-after-step", "3"});
  const std::string trace = training_.directory().read("run/trace.json");
  training_.train("run", traced + Arguments{"--resume", "auto"});
  EXPECT_EQ(training_.directory().read("run/trace.json"), trace);
}

TEST_F(TraceSteps, TheEndSaysWhatComputeWaitedFor) {
  const Outcome outcome = training_.train("run", all_on_nvme_);
  EXPECT_THAT(outcome.output, HasSubstr("compute stalled, waiting for: "));
}

}  // namespace
}  // namespace terrace
