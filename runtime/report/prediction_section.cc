#include <fmt/format.h>

#include <cmath>
#include <string_view>

#include "runtime/report/html_text.h"
#include "runtime/report/number_text.h"
#include "runtime/report/run_sections.h"
#include "runtime/report/run_summary.h"
#include "runtime/report/series.h"

namespace terrace::report {
namespace {

std::optional<double> predicted_step_s(const RunFacts& facts) {
  if (facts.prediction) return facts.prediction->step_s;
  return facts.measured ? facts.measured->predicted_step_s : std::nullopt;
}

std::string ratio_text(double measured, double expected) {
  return expected > 0 ? fmt::format("{:.2f} times", measured / expected) : std::string();
}

std::string step_table(const ReportRun& run, const RunSummary& summary) {
  const std::optional<double> predicted = predicted_step_s(run.facts);
  HtmlTable table("Time of a step, predicted and measured",
                  {{"Figure"}, {"Time", true}, {"Against the prediction", true}});
  if (predicted)
    table.add({"predicted before the run", number_element(*predicted, time_text(*predicted))});
  const auto add = [&](const std::string& name, double seconds) {
    if (!std::isfinite(seconds)) return;
    table.add({escaped(name), number_element(seconds, time_text(seconds)),
               predicted ? ratio_text(seconds, *predicted) : std::string()});
  };
  if (run.facts.measured) {
    add(fmt::format("median of {} after the first", counted(run.facts.measured->steps, "step")),
        run.facts.measured->step_s);
  }
  add("median of all steps", summary.median_step_s);
  if (summary.rows > 0)
    add("mean of all steps", summary.seconds / static_cast<double>(summary.rows));
  return table.text();
}

std::string basis_of(const ReportRun& run) {
  const RunFacts& facts = run.facts;
  if (!predicted_step_s(facts)) {
    return paragraph(
        "No step time was predicted: there were several ranks with a GPU each, or the GPU had too "
        "little free memory to time ops.");
  }
  if (!facts.prediction) return "";
  const PredictedStep& predicted = *facts.prediction;
  std::string text = fmt::format(
      "The simulator predicted that the <strong>{}</strong> lane limits the step. At the start, "
      "matrix products ran at {} GFLOP/s",
      escaped(predicted.bottleneck), number_text(predicted.flops_per_s * 1e-9));
  const double moved = finite_sum(run.metrics.column("nvme_read_bytes")) +
                       finite_sum(run.metrics.column("nvme_write_bytes"));
  if (moved > 0 && predicted.read_bytes_per_s > 0) {
    text += fmt::format(
        "; drives read at {} and write at {}, {}", rate_text(predicted.read_bytes_per_s),
        rate_text(predicted.write_bytes_per_s),
        predicted.drive_is_remembered ? "measured by an earlier run" : "which is assumed");
  }
  return paragraph(text + (predicted.ops_are_measured
                               ? ". An op of each kind was timed, too."
                               : ". Some ops were too slow or too large to be timed, so the "
                                 "prediction may be wrong by a factor of two."));
}

// Returns the rate that a lane can reach; 0 where it is not known.
double limit_of(const RunFacts& facts, std::string_view lane) {
  if (!facts.prediction) return 0;
  const PredictedStep& predicted = *facts.prediction;
  if (lane == "upload") return predicted.upload_bytes_per_s;
  if (lane == "download") return predicted.download_bytes_per_s;
  if (lane == "collective") return predicted.collective_bytes_per_s;
  if (!predicted.drive_is_remembered) return 0;
  if (lane == "read") return predicted.read_bytes_per_s;
  return lane == "write" ? predicted.write_bytes_per_s : 0;
}

std::string_view words_of_link(std::string_view lane) {
  if (lane == "upload") return "upload: host to device";
  if (lane == "download") return "download: device to host";
  if (lane == "read") return "read: drives to memory";
  if (lane == "write") return "write: memory to drives";
  return "collective: between ranks";
}

std::string links_table(const ReportRun& run, const RunSummary& summary) {
  HtmlTable table("Bytes that each link carried", {{"Link"},
                                                   {"Bytes in a step, mean", true},
                                                   {"Rate while busy", true},
                                                   {"Measured limit", true},
                                                   {"Share of the limit", true}});
  for (const LaneTotal& lane : lane_totals(run.metrics)) {
    if (!(lane.bytes > 0)) continue;
    const double of_step = lane.bytes / static_cast<double>(summary.rows);
    const double rate = lane.bytes / lane.busy_s;
    const double limit = limit_of(run.facts, lane.lane);
    table.add({escaped(words_of_link(lane.lane)), number_element(of_step, bytes_text(of_step)),
               number_element(rate, rate_text(rate)),
               limit > 0 ? escaped(rate_text(limit)) : "not known",
               limit > 0 ? percent_text(rate / limit) : ""});
  }
  return table.is_empty() ? paragraph("No link carried bytes: one tier held everything.")
                          : table.text();
}

std::string written_sentence(const ReportRun& run, const RunSummary& summary) {
  const double written = finite_sum(run.metrics.column("nvme_write_bytes"));
  if (!(written > 0) || !(summary.seconds > 0)) return "";
  return paragraph(fmt::format("The drives took {:.3f} TB, which is {:.2f} TB a day at this pace.",
                               written * 1e-12, written / summary.seconds * 86400e-12));
}

}  // namespace

std::string prediction_section(const ReportRun& run, const std::string& id) {
  const RunSummary summary = summary_of(run);
  std::string html = section_heading(id, RunPart::kPrediction);
  html += step_table(run, summary) + basis_of(run);
  if (summary.rows == 0) return html;
  return html + links_table(run, summary) + written_sentence(run, summary);
}

}  // namespace terrace::report
