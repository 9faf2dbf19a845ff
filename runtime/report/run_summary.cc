#include "runtime/report/run_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

#include "runtime/report/series.h"

namespace terrace::report {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

double largest(std::span<const double> values) {
  double most = kUnknown;
  for (const double value : values) {
    if (std::isfinite(value) && !(most >= value)) most = value;
  }
  return most;
}

struct LaneColumns {
  std::string_view lane;   // as in busy_s
  std::string_view bytes;  // empty: its bytes are not counted
};

// Adds up the energy of the steps in which it was measured.
void set_energy(const MetricsTable& metrics, RunSummary& summary) {
  const std::span<const double> joules = metrics.column("joules");
  const std::span<const double> tokens = metrics.column("tokens");
  double sum = 0;
  double of_tokens = 0;
  for (std::size_t i = 0; i < std::min(joules.size(), tokens.size()); ++i) {
    if (!std::isfinite(joules[i]) || !std::isfinite(tokens[i])) continue;
    sum += joules[i];
    of_tokens += tokens[i];
  }
  summary.joules = sum > 0 ? sum : kUnknown;
  summary.joules_per_token = sum > 0 && of_tokens > 0 ? sum / of_tokens : kUnknown;
}

constexpr auto kLaneColumns = std::to_array<LaneColumns>({{"compute", ""},
                                                          {"upload", "upload_bytes"},
                                                          {"download", "download_bytes"},
                                                          {"read", "nvme_read_bytes"},
                                                          {"write", "nvme_write_bytes"},
                                                          {"collective", "collective_bytes"},
                                                          {"send_recv", ""},
                                                          {"update", ""},
                                                          {"code", ""}});

}  // namespace

std::vector<std::string> validation_columns(const MetricsTable& metrics) {
  std::vector<std::string> columns = metrics.columns_of("validation_loss/");
  if (columns.empty() && metrics.has("validation_loss")) columns.emplace_back("validation_loss");
  return columns;
}

std::string name_of_validation(const std::string& column) {
  const std::size_t slash = column.find('/');
  return slash == std::string::npos ? "validation"
                                    : fmt::format("validation {}", column.substr(slash + 1));
}

RunSummary summary_of(const ReportRun& run) {
  const MetricsTable& metrics = run.metrics;
  RunSummary summary;
  summary.rows = static_cast<std::int64_t>(metrics.rows());
  summary.last_step = metrics.last("step");
  summary.seconds = finite_sum(metrics.column("step_s"));
  summary.tokens = finite_sum(metrics.column("tokens"));
  summary.tokens_per_s = summary.seconds > 0 ? summary.tokens / summary.seconds : kUnknown;
  const Series steps = finite_series(metrics.column("step"), metrics.column("step_s"));
  summary.median_step_s = steps.is_empty() ? kUnknown : quantile(steps.y, 0.5);
  summary.loss = metrics.last("loss");
  for (const std::string& column : validation_columns(metrics)) {
    const GroupedSeries losses =
        grouped(finite_series(metrics.column("step"), metrics.column(column)), 1);
    if (losses.values == 0) continue;
    summary.validation.push_back({column, losses.last, losses.low, losses.x_low});
  }
  summary.device_peak_bytes = largest(metrics.column("device_peak_bytes"));
  summary.host_peak_bytes = largest(metrics.column("host_peak_bytes"));
  summary.nvme_used_bytes = largest(metrics.column("nvme_used_bytes"));
  summary.process_peak_bytes = largest(metrics.column("peak_rss_bytes"));
  set_energy(metrics, summary);
  return summary;
}

std::string title_of_validation(const std::string& column) {
  const std::size_t slash = column.find('/');
  return slash == std::string::npos
             ? "Validation loss"
             : fmt::format("Validation loss of {}", column.substr(slash + 1));
}

std::vector<LaneTotal> lane_totals(const MetricsTable& metrics) {
  std::vector<LaneTotal> totals;
  for (const LaneColumns& columns : kLaneColumns) {
    LaneTotal total = {.lane = std::string(columns.lane)};
    total.busy_s = finite_sum(metrics.column(fmt::format("busy_s/{}", columns.lane)));
    if (!columns.bytes.empty()) total.bytes = finite_sum(metrics.column(columns.bytes));
    if (total.busy_s > 0) totals.push_back(std::move(total));
  }
  return totals;
}

}  // namespace terrace::report
