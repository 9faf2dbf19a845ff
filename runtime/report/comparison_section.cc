#include "runtime/report/comparison_section.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "runtime/report/curve_chart.h"
#include "runtime/report/html_text.h"
#include "runtime/report/number_text.h"
#include "runtime/report/run_summary.h"

namespace terrace::report {
namespace {

std::string cell_of(double value, std::string (*words)(double)) {
  return std::isfinite(value) ? number_element(value, words(value)) : std::string("-");
}

std::string loss_text(double loss) { return fmt::format("{:.4f}", loss); }

std::string peak_text(double bytes) { return bytes > 0 ? bytes_text(bytes) : std::string("-"); }

std::vector<std::string> validation_columns_of(const std::vector<ReportRun>& runs) {
  std::set<std::string> columns;
  for (const ReportRun& run : runs) {
    for (std::string& column : validation_columns(run.metrics)) columns.insert(std::move(column));
  }
  return {columns.begin(), columns.end()};
}

std::string figures_table(const std::vector<ReportRun>& runs) {
  const std::vector<std::string> sets = validation_columns_of(runs);
  std::vector<HtmlTable::Column> columns = {{"Run"}, {"Last step", true}, {"Final loss", true}};
  for (const std::string& set : sets) columns.push_back({title_of_validation(set), true});
  for (const char* const title : {"Tokens/s", "Median step", "Time in steps", "Device peak",
                                  "Host peak", "Drive use", "Process peak"}) {
    columns.push_back({title, true});
  }
  const bool has_energy = std::ranges::any_of(
      runs, [](const ReportRun& run) { return run.metrics.has("joules_per_token"); });
  if (has_energy) columns.push_back({"J a token", true});
  HtmlTable table("Figures of each run", std::move(columns));
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const RunSummary summary = summary_of(runs[i]);
    std::vector<std::string> cells = {
        fmt::format("{}<a href=\"#r{}\">{}</a>",
                    curve_key(fmt::format("curve c{}", i % kCurveColours)), i,
                    escaped(runs[i].name)),
        cell_of(summary.last_step, number_text), cell_of(summary.loss, loss_text)};
    for (const std::string& set : sets) {
      const auto found =
          std::ranges::find(summary.validation, set, &RunSummary::Validation::column);
      cells.push_back(found == summary.validation.end() ? "-" : cell_of(found->last, loss_text));
    }
    cells.push_back(cell_of(summary.tokens_per_s, number_text));
    cells.push_back(cell_of(summary.median_step_s, time_text));
    cells.push_back(cell_of(summary.seconds, time_text));
    for (const double bytes : {summary.device_peak_bytes, summary.host_peak_bytes,
                               summary.nvme_used_bytes, summary.process_peak_bytes}) {
      cells.push_back(cell_of(bytes, peak_text));
    }
    if (has_energy) cells.push_back(cell_of(summary.joules_per_token, number_text));
    table.add(std::move(cells));
  }
  return table.text();
}

// The values of a column over those of another one, for each run.
CurveChart shared_chart(const std::vector<ReportRun>& runs, const std::string& column,
                        std::size_t points) {
  CurveChart chart;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const MetricsTable& metrics = runs[i].metrics;
    chart.curves.push_back(
        {.name = runs[i].name,
         .values = grouped(finite_series(metrics.column("step"), metrics.column(column)), points),
         .colour = static_cast<int>(i)});
  }
  chart.id = "all" + column.substr(0, column.find_first_of("_/")) + std::to_string(column.size());
  return chart;
}

// Adds up the times of the steps, so that curves can be drawn over the time that was spent.
std::vector<double> seconds_until(std::span<const double> step_s) {
  std::vector<double> sums;
  double sum = 0;
  for (const double seconds : step_s) {
    sum += std::isfinite(seconds) ? seconds : 0;
    sums.push_back(sum);
  }
  return sums;
}

std::string shared_curves(const std::vector<ReportRun>& runs, std::size_t points) {
  std::string figures;
  const auto draw = [&](const std::string& column, const std::string& title,
                        const std::string& unit, bool from_zero) {
    CurveChart chart = shared_chart(runs, column, points);
    chart.title = title;
    chart.unit = unit;
    chart.from_zero = from_zero;
    chart.cuts_outliers = from_zero;
    figures += curve_figure(chart);
  };
  draw("loss", "Loss", "nats per token", false);
  int number = 0;
  for (const std::string& set : validation_columns_of(runs)) {
    CurveChart chart = shared_chart(runs, set, points);
    chart.id = fmt::format("allv{}", number++);
    chart.title = title_of_validation(set);
    chart.unit = "nats per token";
    for (Curve& curve : chart.curves) curve.has_dots = true;
    figures += curve_figure(chart);
  }
  CurveChart over_time = {.id = "alltime",
                          .title = "Loss over time",
                          .unit = "nats per token, time in steps only",
                          .x_name = "seconds"};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const MetricsTable& metrics = runs[i].metrics;
    over_time.curves.push_back(
        {.name = runs[i].name,
         .values =
             grouped(finite_series(seconds_until(metrics.column("step_s")), metrics.column("loss")),
                     points),
         .colour = static_cast<int>(i)});
  }
  figures += curve_figure(over_time);
  draw("grad_norm", "Gradient norm", "before clipping", true);
  draw("tokens_per_s", "Speed", "tokens/s", true);
  draw("step_s", "Step time", "seconds", true);
  return figures.empty() ? figures : "<div class=\"charts\">\n" + figures + "</div>\n";
}

std::string options_table(const std::vector<ReportRun>& runs) {
  std::vector<ConfigValues> configs;
  for (const ReportRun& run : runs) configs.push_back(run.config);
  const std::vector<DifferingOption> options = differing_options(configs);
  if (options.empty()) return paragraph("All options of the runs are equal, run_dir left out.");
  std::vector<HtmlTable::Column> columns = {{"Option"}};
  for (const ReportRun& run : runs) columns.push_back({run.name});
  HtmlTable table("Options on which the runs differ, run_dir left out", std::move(columns));
  for (const DifferingOption& option : options) {
    std::vector<std::string> cells = {fmt::format("<code>{}</code>", escaped(option.key))};
    for (const std::string& value : option.values) {
      cells.push_back(fmt::format("<code>{}</code>", escaped(value)));
    }
    table.add(std::move(cells));
  }
  return table.text();
}

}  // namespace

std::string comparison_section(const std::vector<ReportRun>& runs, const PictureRoom& room) {
  return "<section id=\"comparison\">\n<h2>Comparison</h2>\n" + figures_table(runs) +
         "<h3>Curves of all runs</h3>\n" + shared_curves(runs, room.curve_points) +
         "<h3>Differing options</h3>\n" + options_table(runs) + "</section>\n";
}

}  // namespace terrace::report
