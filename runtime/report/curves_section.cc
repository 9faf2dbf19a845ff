#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "runtime/report/curve_chart.h"
#include "runtime/report/html_text.h"
#include "runtime/report/number_text.h"
#include "runtime/report/run_sections.h"
#include "runtime/report/run_summary.h"

namespace terrace::report {
namespace {

// A tile: a figure with its name.
std::string tile(std::string_view name, std::string_view value, std::string_view css_class = "") {
  return fmt::format("<div{}><dt>{}</dt><dd>{}</dd></div>\n",
                     css_class.empty() ? "" : fmt::format(" class=\"{}\"", css_class),
                     escaped(name), value);
}

std::string validation_value(const RunSummary::Validation& set) {
  std::string html = number_element(set.last, fmt::format("{:.4f}", set.last));
  if (set.lowest < set.last) {
    html += fmt::format(" <small>lowest {} at step {}</small>",
                        number_element(set.lowest, fmt::format("{:.4f}", set.lowest)),
                        number_text(set.lowest_step));
  }
  return html;
}

std::string memory_tile(const RunSummary& summary) {
  std::string text;
  const auto add = [&text](std::string_view tier, double bytes) {
    if (!(bytes > 0)) return;
    text += fmt::format("<span>{} <small>{}</small></span> ",
                        number_element(bytes, bytes_text(bytes)), tier);
  };
  add("device", summary.device_peak_bytes);
  add("host", summary.host_peak_bytes);
  add("nvme", summary.nvme_used_bytes);
  return text.empty() ? text : tile("Peak by tier", text, "lines");
}

std::string energy_tile(const RunSummary& summary) {
  if (!std::isfinite(summary.joules_per_token)) return "";
  return tile("Energy", fmt::format("{} J <small>{} J a token</small>",
                                    number_element(summary.joules, number_text(summary.joules)),
                                    number_element(summary.joules_per_token,
                                                   number_text(summary.joules_per_token))));
}

// Returns sentences about steps whose values are not numbers.
std::vector<std::string> odd_steps(const MetricsTable& metrics) {
  std::vector<std::string> sentences;
  const auto count_odd = [&metrics](std::string_view column) {
    return std::ranges::count_if(metrics.column(column),
                                 [](double value) { return !std::isfinite(value); });
  };
  if (const auto odd = count_odd("loss"); odd > 0) {
    sentences.push_back(fmt::format("The loss of {} is not a number and is left out of the curve.",
                                    counted(odd, "step")));
  }
  if (const auto odd = count_odd("grad_norm"); odd > 0) {
    sentences.push_back(
        fmt::format("The gradient norm of {} is not finite and is left out of the curve.",
                    counted(odd, "step")));
  }
  const double skipped = finite_sum(metrics.column("skipped"));
  if (skipped > 0) {
    sentences.push_back(fmt::format("Gradients overflowed in {}, which changed no parameter.",
                                    counted(std::llround(skipped), "step")));
  }
  return sentences;
}

class RunCurves {
 public:
  RunCurves(const ReportRun& run, std::string id, std::size_t points)
      : run_(run), id_(std::move(id)), points_(points) {}

  Curve curve(const std::string& column, const std::string& name, int colour = 0) const {
    const MetricsTable& metrics = run_.metrics;
    return {
        .name = name,
        .values = grouped(finite_series(metrics.column("step"), metrics.column(column)), points_),
        .colour = colour};
  }

  CurveChart chart(const std::string& key, const std::string& title,
                   const std::string& unit) const {
    CurveChart chart = {.id = id_ + key, .title = title, .unit = unit};
    return chart;
  }

  std::string loss() const {
    CurveChart chart = this->chart("loss", "Loss", "nats per token");
    chart.curves.push_back(curve("loss", "training"));
    int colour = 1;
    for (const std::string& column : validation_columns(run_.metrics)) {
      chart.curves.push_back(curve(column, name_of_validation(column), colour++));
      chart.curves.back().has_dots = true;
    }
    return curve_figure(chart);
  }

  std::string simple(const std::string& column, const std::string& title, const std::string& unit,
                     bool from_zero) const {
    CurveChart chart = this->chart(column.substr(0, column.find('_')) + "x", title, unit);
    chart.id += std::to_string(column.size());
    chart.curves.push_back(curve(column, title));
    chart.from_zero = from_zero;
    chart.cuts_outliers = from_zero;
    return curve_figure(chart);
  }

  std::string process_memory() const {
    constexpr double kMebibyte = 1024 * 1024;
    CurveChart chart = this->chart("rss", "Process memory", "MiB resident, the peak so far");
    Series peak = finite_series(run_.metrics.column("step"), run_.metrics.column("peak_rss_bytes"));
    for (double& bytes : peak.y) bytes /= kMebibyte;
    chart.curves.push_back({.name = "process memory", .values = grouped(peak, points_)});
    chart.from_zero = true;
    return curve_figure(chart);
  }

  std::string step_time() const {
    CurveChart chart = this->chart("time", "Step time", "seconds");
    chart.curves.push_back(curve("step_s", "measured"));
    chart.from_zero = true;
    chart.cuts_outliers = true;
    if (run_.facts.prediction) {
      chart.reference = run_.facts.prediction->step_s;
    } else if (run_.facts.measured) {
      chart.reference = run_.facts.measured->predicted_step_s;
    }
    chart.reference_name = "predicted before the run";
    return curve_figure(chart);
  }

 private:
  const ReportRun& run_;
  std::string id_;
  std::size_t points_;
};

}  // namespace

std::string headline_section(const ReportRun& run) {
  const RunSummary summary = summary_of(run);
  std::string html;
  if (summary.rows > 0) {
    html += "<dl class=\"tiles\">\n";
    html += tile("Last step", number_element(summary.last_step, number_text(summary.last_step)));
    html += tile("Loss", number_element(summary.loss, fmt::format("{:.4f}", summary.loss)));
    for (const RunSummary::Validation& set : summary.validation) {
      html += tile(title_of_validation(set.column), validation_value(set));
    }
    html +=
        tile("Tokens/s", number_element(summary.tokens_per_s, number_text(summary.tokens_per_s)));
    html += tile("Median step",
                 number_element(summary.median_step_s, time_text(summary.median_step_s)));
    html += tile("Time in steps", number_element(summary.seconds, time_text(summary.seconds)));
    html += tile("Tokens", number_element(summary.tokens, number_text(summary.tokens)));
    html += memory_tile(summary) + energy_tile(summary) + "</dl>\n";
    const double time = run.metrics.last("time");
    if (std::isfinite(time)) {
      html += paragraph(fmt::format("The last step ended at {}.", date_text(time)), "note");
    }
    if (!run.facts.energy.empty()) html += paragraph(escaped(run.facts.energy), "note");
  }
  std::vector<std::string> remarks = run.remarks;
  for (const std::string& sentence : odd_steps(run.metrics)) remarks.push_back(sentence);
  for (std::string& remark : remarks) remark = escaped(remark);
  return html + bullet_list(remarks, "remarks");
}

namespace {

// Returns the curves of figures that only some runs have.
std::string rare_figures(const ReportRun& run, const RunCurves& curves) {
  struct Figure {
    const char *column, *title, *unit;
  };
  constexpr auto kFigures = std::to_array<Figure>(
      {{"gradient_noise_scale", "Gradient noise scale", "samples"},
       {"micro_batches", "Micro-batches of a rank", "in a step"},
       {"router_aux_loss", "Balance loss of routers", "before its coefficient"},
       {"router_z_loss", "Z-loss of routers", "before its coefficient"},
       {"experts_touched", "Experts in use", "of a layer, in a micro-batch"},
       {"expert_share_max", "Busiest expert", "share of a layer's choices in a micro-batch"}});
  std::string figures;
  for (const Figure& figure : kFigures) {
    if (!run.metrics.has(figure.column)) continue;
    figures += curves.simple(figure.column, figure.title, figure.unit, true);
  }
  return figures;
}

}  // namespace

std::string curves_section(const ReportRun& run, const std::string& id, const PictureRoom& room) {
  const RunCurves curves(run, id, room.curve_points);
  std::string figures = curves.loss();
  figures += curves.simple("grad_norm", "Gradient norm", "before clipping", true);
  figures += curves.simple("learning_rate", "Learning rate", "", true);
  figures += curves.simple("tokens_per_s", "Speed", "tokens/s", true);
  figures += curves.step_time();
  figures += curves.process_memory();
  const std::span<const double> scales = run.metrics.column("loss_scale");
  const bool scale_changes = std::ranges::any_of(
      scales, [&](double scale) { return std::isfinite(scale) && scale != scales.front(); });
  if (scale_changes) figures += curves.simple("loss_scale", "Loss scale", "", true);
  figures += rare_figures(run, curves);
  if (run.metrics.has("mfu")) {
    figures += curves.simple("mfu", "Model FLOPs utilisation", "share of the stated speed", true);
  }
  if (run.metrics.has("joules_per_token")) {
    figures += curves.simple("joules_per_token", "Energy", "joules per token", true);
  }
  if (figures.empty())
    return section_heading(id, RunPart::kCurves) + paragraph("There are no rows to draw.");
  return section_heading(id, RunPart::kCurves) + "<div class=\"charts\">\n" + figures + "</div>\n";
}

}  // namespace terrace::report
