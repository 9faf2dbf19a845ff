#include "runtime/report/timeline_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "runtime/report/chart_axis.h"
#include "runtime/report/html_text.h"
#include "runtime/report/number_text.h"

namespace terrace::report {
namespace {

constexpr double kWidth = 1080;
constexpr double kLeft = 92;
constexpr double kRight = 1068;
constexpr double kLaneHeight = 26;
constexpr double kBarHeight = 18;
constexpr double kTop = 8;

// A block of the picture: one op or wait, or several that are too short to be seen alone.
struct Block {
  double begin_us = 0;
  double end_us = 0;
  double busy_us = 0;  // the sum of its ops
  std::string name;
  std::size_t ops = 1;
  bool is_wait = false;
};

// Returns the lane's blocks in the window, each of which is separated by at least `least_us` from
// the next or is at least as long.
std::vector<Block> blocks_of(const TracedLane& lane, const StepWindow& window, double least_us) {
  std::vector<Block> blocks;
  for (const LaneSlice& slice : lane.slices) {
    const double begin = std::max(slice.begin_us, window.begin_us);
    const double end = std::min(slice.end_us, window.end_us);
    if (end <= begin) continue;
    const bool is_short = end - begin < least_us;
    if (is_short && slice.is_wait) continue;
    Block* const last = blocks.empty() ? nullptr : &blocks.back();
    const bool joins = last != nullptr && is_short && !last->is_wait &&
                       begin - last->end_us < least_us &&
                       (last->ops > 1 || last->end_us - last->begin_us < least_us);
    if (!joins) {
      blocks.push_back({begin, end, end - begin, slice.name, 1, slice.is_wait});
      continue;
    }
    last->end_us = std::max(last->end_us, end);
    last->busy_us += end - begin;
    ++last->ops;
  }
  return blocks;
}

std::size_t count_blocks(const LaneTrace& trace, std::size_t steps, double least_us) {
  std::size_t blocks = 0;
  for (std::size_t s = 0; s < steps; ++s) {
    for (const TracedLane& lane : trace.lanes) {
      blocks += blocks_of(lane, trace.steps[s], least_us).size();
    }
  }
  return blocks;
}

// Returns the class of a lane's blocks, which gives them their colour.
std::string_view class_of_lane(std::string_view lane) {
  constexpr auto kKnown = std::to_array<std::string_view>(
      {"compute", "upload", "download", "read", "write", "collective", "tensor", "update"});
  if (lane == "island" || lane == "inter_island") return "collective";
  if (lane == "code") return "update";
  return std::ranges::find(kKnown, lane) == kKnown.end() ? "message" : lane;
}

std::string words_of_block(const Block& block) {
  const std::string time = time_text((block.end_us - block.begin_us) * 1e-6);
  if (block.is_wait) return fmt::format("waits {} for {}", time, block.name);
  if (block.ops == 1) return fmt::format("{}: {}", block.name, time);
  return fmt::format("{} ops from {} on: busy {} of {}", block.ops, block.name,
                     time_text(block.busy_us * 1e-6), time);
}

class TimelinePainter {
 public:
  TimelinePainter(const LaneTrace& trace, const StepWindow& window, double least_us)
      : trace_(trace),
        window_(window),
        least_us_(least_us),
        time_({0, std::max(window.end_us - window.begin_us, 1e-3)}, kLeft, kRight) {}

  std::string paint(const std::string& id) const {
    const double bottom = kTop + kLaneHeight * static_cast<double>(trace_.lanes.size());
    const std::string name =
        window_.step > 0 ? fmt::format("Step {}", window_.step) : std::string("All traced work");
    std::string html = fmt::format(
        "<figure class=\"timeline\">\n<figcaption>{0} <span class=\"unit\">{1}</span>"
        "</figcaption>\n<div class=\"scroll\" role=\"region\" aria-label=\"{0}: timeline\" "
        "tabindex=\"0\">\n<svg viewBox=\"0 0 {2:.0f} {3:.0f}\" role=\"img\" "
        "aria-labelledby=\"{4}-t {4}-d\">\n<title id=\"{4}-t\">{0}: what each lane did</title>\n"
        "<desc id=\"{4}-d\">{5}</desc>\n",
        name, time_text((window_.end_us - window_.begin_us) * 1e-6), kWidth, bottom + 26, id,
        escaped(in_words()));
    html += axis(bottom);
    for (std::size_t lane = 0; lane < trace_.lanes.size(); ++lane) {
      html += paint_lane(trace_.lanes[lane], kTop + kLaneHeight * static_cast<double>(lane));
    }
    return html + "</svg>\n</div>\n</figure>\n";
  }

 private:
  std::string in_words() const {
    std::string text;
    for (const TracedLane& lane : trace_.lanes) {
      double busy_us = 0;
      double waiting_us = 0;
      for (const Block& block : blocks_of(lane, window_, 0)) {
        (block.is_wait ? waiting_us : busy_us) += block.end_us - block.begin_us;
      }
      text += fmt::format("{}{} busy {}", text.empty() ? "" : "; ", lane.name,
                          time_text(busy_us * 1e-6));
      if (waiting_us > 0) text += fmt::format(", waiting {}", time_text(waiting_us * 1e-6));
    }
    return text + ".";
  }

  std::string axis(double bottom) const {
    std::string svg = "<g class=\"axes\">\n";
    const AxisRange seconds = {0, time_.range().high * 1e-6};
    for (const double tick : axis_ticks(seconds, 8)) {
      const double at = time_.place(tick * 1e6);
      svg += fmt::format(
          "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.0f}\" y2=\"{2:.0f}\"/>"
          "<text x=\"{0:.1f}\" y=\"{3:.0f}\" class=\"m\">{4}</text>\n",
          at, kTop, bottom, bottom + 17, time_text(tick));
    }
    return svg + "</g>\n";
  }

  std::string paint_lane(const TracedLane& lane, double top) const {
    std::string svg = fmt::format(
        "<text class=\"lane\" x=\"{:.0f}\" y=\"{:.1f}\">{}</text>\n<g class=\"l-{}\">\n", kLeft - 8,
        top + kBarHeight - 3, escaped(lane.name), class_of_lane(lane.name));
    for (const Block& block : blocks_of(lane, window_, least_us_)) {
      const double begin = time_.place(block.begin_us - window_.begin_us);
      const double end = time_.place(block.end_us - window_.begin_us);
      svg += fmt::format(
          "<rect{} x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\">"
          "<title>{}</title></rect>\n",
          block.is_wait ? " class=\"w\"" : "", begin, top + (block.is_wait ? 6 : 0),
          std::max(end - begin, 0.6), block.is_wait ? kBarHeight - 12 : kBarHeight,
          escaped(words_of_block(block)));
    }
    return svg + "</g>\n";
  }

  const LaneTrace& trace_;
  const StepWindow& window_;
  double least_us_;
  AxisScale time_;
};

}  // namespace

std::string timeline_figures(const LaneTrace& trace, const TimelineOptions& options) {
  const std::size_t steps = std::min(trace.steps.size(), options.most_steps);
  double longest_us = 0;
  for (std::size_t s = 0; s < steps; ++s) {
    longest_us = std::max(longest_us, trace.steps[s].end_us - trace.steps[s].begin_us);
  }
  constexpr double kLeastWidth = 0.6;
  double least_us = longest_us * kLeastWidth / (kRight - kLeft);
  while (count_blocks(trace, steps, least_us) > options.most_blocks && least_us < longest_us) {
    least_us *= 1.5;
  }
  std::string html;
  for (std::size_t s = 0; s < steps; ++s) {
    html +=
        TimelinePainter(trace, trace.steps[s], least_us).paint(fmt::format("{}s{}", options.id, s));
  }
  std::string note = fmt::format(
      "Broad bars are work, thin bars are waits; point at one to read which. Work shorter than {} "
      "is joined to its neighbours. Where a lane is empty, no op was ready or being started.",
      time_text(least_us * 1e-6));
  if (steps < trace.steps.size()) {
    note += fmt::format(" The first {} of {} traced steps are drawn; trace.json has all of them.",
                        steps, trace.steps.size());
  }
  return steps == 0 ? html : html + paragraph(escaped(note), "note");
}

}  // namespace terrace::report
