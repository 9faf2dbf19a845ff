#include "runtime/report/lane_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/json_depth.h"
#include "runtime/report/number_text.h"

namespace terrace::report {
namespace {

using nlohmann::json;

constexpr std::string_view kWaitPrefix = "wait for ";

class TraceReader {
 public:
  // Returns whether the line was read. A line is one event, as the run writes it, or a bracket of
  // the list around them.
  bool read(std::string_view line) {
    while (!line.empty() && (line.back() == ',' || line.back() == '\r')) line.remove_suffix(1);
    if (line.empty() || line == "]}" || line.ends_with("\"traceEvents\":[")) return true;
    if (nests_deeper(line)) return false;
    const json event = json::parse(line, nullptr, false);
    if (!event.is_object()) return false;
    try {
      add(event);
    } catch (const json::exception&) {
      return false;
    }
    return true;
  }

  LaneTrace trace() {
    LaneTrace result;
    for (auto& [track, lane] : lanes_) {
      std::ranges::stable_sort(lane.slices, {}, &LaneSlice::begin_us);
      if (!lane.slices.empty()) result.lanes.push_back(std::move(lane));
    }
    result.steps = windows();
    result.lane_of_op = std::move(lane_of_op_);
    return result;
  }

 private:
  void add(const json& event) {
    const std::string phase = event.at("ph");
    const auto track = event.at("tid").get<std::int64_t>();
    if (phase == "M") {
      if (event.at("name") == "thread_name") lanes_[track].name = event.at("args").at("name");
      return;
    }
    const std::string name = event.at("name");
    const std::string category = event.at("cat");
    if (category != "wait" && name != "in flight") lane_of_op_.try_emplace(name, category);
    if (phase != "X") return;
    const double begin = event.at("ts");
    const double end = begin + event.at("dur").get<double>();
    const bool is_wait = category == "wait";
    last_us_ = std::max(last_us_, end);
    lanes_[track].slices.push_back(
        {begin, end, is_wait ? name.substr(std::min(name.size(), kWaitPrefix.size())) : name,
         is_wait});
    if (category != "compute" || !event.at("args").contains("step")) return;
    const auto step = event.at("args").at("step").get<std::int64_t>();
    const auto [first, is_new] = first_us_.try_emplace(step, begin);
    first->second = std::min(first->second, begin);
  }

  // An op of the step before, deferred to the first traced step, may be all that is traced of its
  // step: that step has no window.
  std::vector<StepWindow> windows() const {
    std::vector<StepWindow> steps;
    double until = std::max(last_us_, 0.0);
    for (auto step = first_us_.rbegin(); step != first_us_.rend(); ++step) {
      if (step->second >= until) continue;
      steps.push_back({step->first, step->second, until});
      until = step->second;
    }
    std::ranges::reverse(steps);
    if (steps.empty() && last_us_ > 0) steps.push_back({0, 0, last_us_});
    return steps;
  }

  std::map<std::int64_t, TracedLane> lanes_;
  std::map<std::int64_t, double> first_us_;  // of the compute ops, by step
  std::map<std::string, std::string> lane_of_op_;
  double last_us_ = 0;
};

}  // namespace

LaneTrace read_lane_trace(const std::string& path, std::vector<std::string>& remarks) {
  std::ifstream stream(path, std::ios::binary);
  TraceReader reader;
  std::int64_t dropped = 0;
  for (std::string line; std::getline(stream, line);) dropped += reader.read(line) ? 0 : 1;
  LaneTrace trace = reader.trace();
  if (trace.is_empty() && dropped == 0) {
    remarks.emplace_back("trace.json is empty or cannot be read: it has no op of a traced step.");
  }
  if (dropped > 0) {
    remarks.push_back(
        fmt::format("{} of trace.json cannot be read and are left out: its end may be torn, or "
                    "another program wrote it.",
                    counted(dropped, "line")));
  }
  return trace;
}

std::vector<LaneWait> waits_in(const LaneTrace& trace) {
  std::map<std::pair<std::string, std::string>, double> sums;
  for (const TracedLane& lane : trace.lanes) {
    for (const LaneSlice& slice : lane.slices) {
      if (!slice.is_wait) continue;
      const auto cause = trace.lane_of_op.find(slice.name);
      const std::string by = cause == trace.lane_of_op.end() ? "other" : cause->second;
      sums[{lane.name, by}] += (slice.end_us - slice.begin_us) * 1e-6;
    }
  }
  std::vector<LaneWait> waits;
  for (const auto& [key, seconds] : sums) waits.push_back({key.first, key.second, seconds});
  std::ranges::stable_sort(waits, std::ranges::greater(), &LaneWait::seconds);
  return waits;
}

}  // namespace terrace::report
