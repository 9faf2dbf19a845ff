#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "runtime/report/html_text.h"
#include "runtime/report/number_text.h"
#include "runtime/report/run_sections.h"
#include "runtime/report/run_summary.h"
#include "runtime/report/share_bars.h"
#include "runtime/report/timeline_chart.h"

namespace terrace::report {
namespace {

// The row of messages adds up all their lanes, so its share may be above one.
std::string words_of_lane(const std::string& lane) {
  return lane == "send_recv" ? "send and receive lanes, added up" : lane;
}

std::string lanes_table(const RunSummary& summary, const std::vector<LaneTotal>& lanes,
                        const std::string& id) {
  HtmlTable table("Busy time of each lane in all steps", {{"Lane"},
                                                          {"Busy", true},
                                                          {"Share of the time", true},
                                                          {"Share, drawn"},
                                                          {"Bytes moved", true},
                                                          {"Rate while busy", true}});
  int number = 0;
  for (const LaneTotal& lane : lanes) {
    const double share = lane.busy_s / summary.seconds;
    const ShareBar bar = {.id = fmt::format("{}b{}", id, number++),
                          .title = lane.lane + " busy",
                          .parts = {{lane.lane, share, "l-" + lane.lane}},
                          .whole = 1,
                          .marker = std::nullopt};
    table.add({escaped(words_of_lane(lane.lane)),
               number_element(lane.busy_s, time_text(lane.busy_s)),
               number_element(share, percent_text(share)), share_bar(bar, percent_text),
               lane.bytes > 0 ? number_element(lane.bytes, bytes_text(lane.bytes)) : "",
               lane.bytes > 0 ? escaped(rate_text(lane.bytes / lane.busy_s)) : ""});
  }
  return table.text();
}

std::string limit_sentence(const RunSummary& summary, const std::vector<LaneTotal>& lanes) {
  const LaneTotal* busiest = nullptr;
  for (const LaneTotal& lane : lanes) {
    const bool counts = lane.lane != "send_recv";  // says when the other rank arrived, no more
    if (counts && (busiest == nullptr || lane.busy_s > busiest->busy_s)) busiest = &lane;
  }
  if (busiest == nullptr) return "";
  const double share = busiest->busy_s / summary.seconds;
  constexpr double kMostOfTheTime = 0.7;
  return paragraph(fmt::format(
      "The busiest lane is <strong>{}</strong>: it was at work for {} of {} in steps.{}",
      escaped(busiest->lane), percent_text(share), time_text(summary.seconds),
      share < kMostOfTheTime ? " In the remaining time the lanes waited for each other." : ""));
}

std::string compute_waits_table(const ReportRun& run) {
  if (!run.facts.waits) {
    return paragraph(
        "The waits of the compute lane over the whole run are not known: a run writes them into "
        "run.json at its end.");
  }
  const ComputeWaits& waits = *run.facts.waits;
  std::vector<std::pair<std::string, double>> causes = waits.causes;
  std::ranges::stable_sort(causes, std::ranges::greater(), &std::pair<std::string, double>::second);
  HtmlTable table(fmt::format("Waits of the compute lane by cause, in {} of the last start",
                              counted(waits.steps, "step")),
                  {{"Waited for"}, {"Time", true}, {"Share of the time", true}});
  for (const auto& [cause, seconds] : causes) {
    if (!(seconds > 0)) continue;
    table.add({cause == "start" ? "the start of ops and steps" : escaped(cause),
               number_element(seconds, time_text(seconds)), percent_text(seconds / waits.seconds)});
  }
  return table.is_empty() ? paragraph("The compute lane never waited.") : table.text();
}

std::string traced_waits_table(const LaneTrace& trace) {
  constexpr std::size_t kMostRows = 12;
  HtmlTable table("Waits in the traced steps, the longest first",
                  {{"Lane"}, {"Waited for the lane"}, {"Time", true}});
  std::size_t rows = 0;
  for (const LaneWait& wait : waits_in(trace)) {
    if (++rows > kMostRows) break;
    table.add({escaped(wait.lane),
               wait.cause == "other" ? "work before the traced steps" : escaped(wait.cause),
               number_element(wait.seconds, time_text(wait.seconds))});
  }
  return table.text();
}

std::string timeline_part(const ReportRun& run, const std::string& id, const PictureRoom& room) {
  std::string html = "<h4>Timeline of the lanes</h4>\n";
  if (run.trace.is_empty()) {
    return html +
           paragraph(
               "This run has no trace, so only the busy shares above are known. <code>terrace "
               "train --trace-steps 5:7</code> records when each lane works and what it "
               "waits for in these steps, and changes no result.");
  }
  html += timeline_figures(run.trace, {.id = id + "t", .most_blocks = room.timeline_blocks});
  return html + traced_waits_table(run.trace);
}

}  // namespace

std::string time_section(const ReportRun& run, const std::string& id, const PictureRoom& room) {
  const RunSummary summary = summary_of(run);
  const std::vector<LaneTotal> lanes = lane_totals(run.metrics);
  std::string html = section_heading(id, RunPart::kTime);
  if (lanes.empty() || !(summary.seconds > 0)) {
    html += paragraph("No step has ended, so no busy times are known.");
  } else {
    html += limit_sentence(summary, lanes) + lanes_table(summary, lanes, id);
    html += compute_waits_table(run);
  }
  return html + ranks_part(run, id) + timeline_part(run, id, room);
}

}  // namespace terrace::report
