#include "runtime/report/prometheus_text.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <string_view>

#include "runtime/report/html_text.h"
#include "runtime/report/run_summary.h"

namespace terrace::report {
namespace {

// A number of a row. Columns with the same metric follow each other and differ in a label.
struct Sample {
  std::string_view metric;  // ends with its unit
  std::string_view help;
  std::string_view column;
  std::string_view label = "";  // name="value"
};

constexpr std::string_view kPeak = "Largest use of a memory tier by the plan's arenas.";
constexpr std::string_view kLink = "Bytes that a link carried in the last step, over all ranks.";
constexpr std::string_view kParameters = "Bytes of parameters that were loaded in the last step.";
constexpr std::string_view kBusy = "Time in the last step in which a lane was at work.";

constexpr auto kSamples = std::to_array<Sample>({
    {"terrace_step", "Number of the last step.", "step"},
    {"terrace_loss_nats_per_token", "Training loss of the last step.", "loss"},
    {"terrace_gradient_norm", "Gradient norm of the last step, before clipping.", "grad_norm"},
    {"terrace_learning_rate", "Learning rate of the last step.", "learning_rate"},
    {"terrace_loss_scale", "Scale of the loss in the last step.", "loss_scale"},
    {"terrace_gradient_noise_scale_samples", "Gradient noise scale, averaged up to the last step.",
     "gradient_noise_scale"},
    {"terrace_router_aux_loss", "Balance loss of the routers in the last step.", "router_aux_loss"},
    {"terrace_router_z_loss", "Z-loss of the routers in the last step.", "router_z_loss"},
    {"terrace_experts_touched", "Experts of a layer that a micro-batch used, in the mean.",
     "experts_touched"},
    {"terrace_expert_share_max_ratio", "Largest share of a layer's choices that an expert had.",
     "expert_share_max"},
    {"terrace_step_tokens", "Tokens in the last step.", "tokens"},
    {"terrace_tokens_per_second", "Speed of the last step.", "tokens_per_s"},
    {"terrace_step_seconds", "Time that the last step took.", "step_s"},
    {"terrace_row_timestamp_seconds", "When the last row was written, since 1970.", "time"},
    {"terrace_model_flops_utilisation_ratio",
     "Share of the stated speed of products that was used.", "mfu"},
    {"terrace_step_joules", "Energy of the last step, as far as it is measured.", "joules"},
    {"terrace_joules_per_token", "Energy for each token of the last step.", "joules_per_token"},
    {"terrace_process_peak_resident_bytes", "Largest resident memory of a process of the run.",
     "peak_rss_bytes"},
    {"terrace_tier_peak_bytes", kPeak, "device_peak_bytes", "tier=\"device\""},
    {"terrace_tier_peak_bytes", kPeak, "host_peak_bytes", "tier=\"host\""},
    {"terrace_tier_peak_bytes", kPeak, "nvme_used_bytes", "tier=\"nvme\""},
    {"terrace_step_link_bytes", kLink, "upload_bytes", "link=\"upload\""},
    {"terrace_step_link_bytes", kLink, "download_bytes", "link=\"download\""},
    {"terrace_step_link_bytes", kLink, "nvme_read_bytes", "link=\"read\""},
    {"terrace_step_link_bytes", kLink, "nvme_write_bytes", "link=\"write\""},
    {"terrace_step_link_bytes", kLink, "collective_bytes", "link=\"collective\""},
    {"terrace_step_parameter_bytes", kParameters, "parameter_upload_bytes", "link=\"upload\""},
    {"terrace_step_parameter_bytes", kParameters, "parameter_nvme_read_bytes", "link=\"read\""},
    {"terrace_step_lane_busy_seconds", kBusy, "busy_s/compute", "lane=\"compute\""},
    {"terrace_step_lane_busy_seconds", kBusy, "busy_s/upload", "lane=\"upload\""},
    {"terrace_step_lane_busy_seconds", kBusy, "busy_s/download", "lane=\"download\""},
    {"terrace_step_lane_busy_seconds", kBusy, "busy_s/read", "lane=\"read\""},
    {"terrace_step_lane_busy_seconds", kBusy, "busy_s/write", "lane=\"write\""},
    {"terrace_step_lane_busy_seconds", kBusy, "busy_s/collective", "lane=\"collective\""},
    {"terrace_step_lane_busy_seconds", kBusy, "busy_s/send_recv", "lane=\"send_recv\""},
    {"terrace_step_lane_busy_seconds", kBusy, "busy_s/update", "lane=\"update\""},
});

// Returns a label's value in quotes.
std::string quoted_value(std::string_view text) {
  std::string value = "\"";
  for (const char c : valid_utf8(text)) {
    if (c == '\n') {
      value += "\\n";
      continue;
    }
    if (c == '\\' || c == '"') value += '\\';
    value += c;
  }
  return value + '"';
}

std::string value_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

class ExpositionText {
 public:
  // Begins a metric, unless it is the one that the last sample belongs to.
  void begin(std::string_view metric, std::string_view help) {
    if (metric == metric_) return;
    metric_ = metric;
    header_ = fmt::format("# HELP {0} {1}\n# TYPE {0} gauge\n", metric, help);
  }
  void add(const std::string& labels, double value) {
    text_ += header_ + fmt::format("{}{{{}}} {}\n", metric_, labels, value_text(value));
    header_.clear();
  }
  std::string text() const { return text_; }

 private:
  std::string text_ = fmt::format("{}\n", kPrometheusMark);
  std::string_view metric_;
  std::string header_;  // of a metric without a sample so far
};

void add_validation(const std::vector<ReportRun>& runs, ExpositionText& text) {
  text.begin("terrace_validation_loss_nats_per_token",
             "Loss of the last evaluation, by validation set.");
  for (const ReportRun& run : runs) {
    for (const RunSummary::Validation& validation : summary_of(run).validation) {
      const std::size_t slash = validation.column.find('/');
      const std::string set = slash == std::string::npos ? "" : validation.column.substr(slash + 1);
      text.add(fmt::format("run={},set={}", quoted_value(run.name), quoted_value(set)),
               validation.last);
    }
  }
}

}  // namespace

std::string prometheus_text(const std::vector<ReportRun>& runs) {
  ExpositionText text;
  for (const Sample& sample : kSamples) {
    text.begin(sample.metric, sample.help);
    for (const ReportRun& run : runs) {
      if (!run.metrics.has(sample.column)) continue;
      std::string labels = fmt::format("run={}", quoted_value(run.name));
      if (!sample.label.empty()) labels += fmt::format(",{}", sample.label);
      text.add(labels, run.metrics.last(sample.column));
    }
  }
  add_validation(runs, text);
  return text.text();
}

}  // namespace terrace::report
