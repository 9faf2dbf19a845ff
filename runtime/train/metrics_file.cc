#include "runtime/train/metrics_file.h"

#include <cerrno>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "runtime/checkpoint/durable_file.h"
#include "runtime/train/step_energy.h"

namespace terrace {
namespace {

using nlohmann::ordered_json;

std::string path_in(const std::string& run_dir) {
  return (std::filesystem::path(run_dir) / "metrics.jsonl").string();
}

// Returns the last row of a file of complete rows, as a discarded value where it is no JSON.
ordered_json last_row(const std::string& rows) {
  const std::size_t end = rows.empty() ? 0 : rows.size() - 1;  // its newline
  const std::size_t before = end == 0 ? std::string::npos : rows.rfind('\n', end - 1);
  const std::size_t begin = before == std::string::npos ? 0 : before + 1;
  return ordered_json::parse(rows.substr(begin, end - begin), nullptr, false);
}

// Returns the rows of steps up to `last_step`. Lines that are no rows are dropped too, such as a
// torn last line.
std::string rows_up_to(const std::string& path, std::int64_t last_step) {
  if (!system_files().exists(path)) return "";
  std::istringstream stream(read_whole_file(system_files(), path));
  std::string kept;
  for (std::string line; std::getline(stream, line);) {
    const auto row = nlohmann::json::parse(line, nullptr, false);
    const bool is_row = row.is_object() && row.contains("step") && row["step"].is_number_integer();
    if (is_row && row["step"].get<std::int64_t>() <= last_step) kept += line + '\n';
  }
  return kept;
}

void keep_beside(const std::string& path) {
  FileSystem& disk = system_files();
  const auto content = [&disk](const std::string& file) {
    return disk.exists(file) ? read_whole_file(disk, file) : std::string();
  };
  const std::string rows = content(path);
  const std::string before = path + ".before";
  if (!rows.empty()) write_durable_file(before, content(before) + rows);
}

// Returns the lane's column. Sends and receives of both directions share one, and so do the
// collectives of all groups.
std::string column_of(Lane lane) {
  if (is_message(lane)) return "send_recv";
  return std::string(name_of(is_of_kind(lane, LaneKind::kCollective) ? Lane::kCollective : lane));
}

void add_losses(const std::vector<ValidationLoss>& validation, ordered_json& row) {
  if (validation.empty()) return;
  row[kValidationLossKey] = validation.front().loss;
  for (const auto& [set, loss] : validation) row[validation_loss_key(set)] = loss;
}

void add_energy(const StepMetrics& metrics, double joules, ordered_json& row) {
  const RunTotals& totals = metrics.totals;
  row["joules"] = joules;
  row["joules_per_token"] = joules / static_cast<double>(metrics.tokens);
  if (!std::isfinite(totals.host_joules) || !std::isfinite(totals.device_joules)) return;
  row["host_joules"] = totals.host_joules;
  row["device_joules"] = totals.device_joules;
}

// Returns the numbers of a row, without the step and the time, which an event has anyway.
std::vector<Scalar> scalars_of(const ordered_json& row, const std::string& prefix = "") {
  std::vector<Scalar> scalars;
  for (const auto& [key, value] : row.items()) {
    if (key == "step" || key == "time") continue;
    if (value.is_number()) scalars.push_back({prefix + key, value.get<double>()});
    if (!value.is_object()) continue;
    for (Scalar& scalar : scalars_of(value, prefix + key + "/")) {
      scalars.push_back(std::move(scalar));
    }
  }
  return scalars;
}

void add_router(const RouterFigures& figures, ordered_json& row) {
  row["router_aux_loss"] = figures.balance_loss;
  row["router_z_loss"] = figures.z_loss;
  row["experts_touched"] = figures.experts_touched;
  row["expert_share_max"] = figures.expert_share_max;
}

void add_noise(const NoiseFigures& noise, ordered_json& row) {
  if (noise.scale) row["gradient_noise_scale"] = *noise.scale;
  if (noise.of_step) {
    row["gradient_squared_norm"] = noise.of_step->squared_norm;
    row["gradient_variance"] = noise.of_step->variance;
  }
  if (noise.micro_batches) row["micro_batches"] = *noise.micro_batches;
}

double now_s() {
  const std::chrono::duration<double> time = std::chrono::system_clock::now().time_since_epoch();
  return time.count();
}

std::uint64_t whole(double bytes) { return static_cast<std::uint64_t>(bytes); }

}  // namespace

MetricsFile::MetricsFile(const std::string& run_dir, std::int64_t last_step, const Ledger& ledger)
    : path_(path_in(run_dir)), ledger_(ledger), events_(run_dir, last_step + 1, now_s()) {
  if (last_step == 0) keep_beside(path_);
  write_durable_file(path_, rows_up_to(path_, last_step));
  stream_.open(path_, std::ios::app);
  if (!stream_) throw IoError({.operation = "open", .path = path_, .error_number = errno});
}

void MetricsFile::write(const StepMetrics& metrics) {
  const RunTotals& totals = metrics.totals;
  const auto bytes = [&totals](Lane lane) {
    return whole(totals.moved.lanes.at(static_cast<std::size_t>(lane)));
  };
  ordered_json row;
  row["step"] = metrics.step;
  row["loss"] = metrics.loss;
  row["grad_norm"] = metrics.gradient_norm;  // null where it is not finite
  row["learning_rate"] = metrics.learning_rate;
  row["loss_scale"] = metrics.loss_scale;
  if (metrics.was_skipped) row["skipped"] = true;
  if (metrics.router) add_router(*metrics.router, row);
  add_noise(metrics.noise, row);
  row["tokens"] = metrics.tokens;
  row["tokens_per_s"] =
      metrics.step_s > 0 ? static_cast<double>(metrics.tokens) / metrics.step_s : 0;
  row["step_s"] = metrics.step_s;
  row["time"] = metrics.time_s;
  if (metrics.flops_utilisation.has_value()) row["mfu"] = *metrics.flops_utilisation;
  const std::optional<double> joules = measured_joules(totals);
  has_energy_ = has_energy_ || joules.value_or(0) > 0;
  if (has_energy_ && joules && metrics.tokens > 0) add_energy(metrics, *joules, row);
  row["peak_rss_bytes"] = totals.process_peak_bytes;
  row["device_peak_bytes"] = ledger_[Tier::kDevice].peak_bytes;
  row["host_peak_bytes"] = ledger_[Tier::kHost].peak_bytes;
  row["nvme_used_bytes"] = ledger_[Tier::kNvme].peak_bytes;
  row["upload_bytes"] = bytes(Lane::kUpload);
  row["download_bytes"] = bytes(Lane::kDownload);
  row["nvme_read_bytes"] = bytes(Lane::kRead);
  row["nvme_write_bytes"] = bytes(Lane::kWrite);
  std::uint64_t collective_bytes = 0;
  for (std::size_t l = 0; l < kLaneCount; ++l) {
    const auto lane = static_cast<Lane>(l);
    if (is_of_kind(lane, LaneKind::kCollective)) collective_bytes += bytes(lane);
  }
  row["collective_bytes"] = collective_bytes;
  row["parameter_upload_bytes"] = whole(totals.moved.parameter_uploads);
  row["parameter_nvme_read_bytes"] = whole(totals.moved.parameter_reads);
  ordered_json busy = ordered_json::object();
  for (std::size_t l = 0; l < kLaneCount; ++l) {
    const auto lane = static_cast<Lane>(l);
    if (lane == Lane::kCode && totals.busy_s[l] == 0) continue;  // only runs with codes have it
    const std::string column = column_of(lane);
    busy[column] = busy.value(column, 0.0) + totals.busy_s[l];
  }
  row["busy_s"] = busy;
  if (!metrics.waits.waited_s.empty()) {
    row["collective_wait_s"] = metrics.waits.waited_s;
    row["collective_wait_by_cause_s"] = metrics.waits.waited_for_s;
  }
  add_losses(metrics.validation, row);
  stream_ << row.dump() << '\n' << std::flush;
  if (!stream_) {
    throw IoError({.operation = "write", .path = path_, .error_number = errno},
                  "free space in the run directory");
  }
  events_.add(metrics.step, metrics.time_s, scalars_of(row));
}

void MetricsFile::add_to_last_row(const std::vector<ValidationLoss>& validation) {
  std::string rows = read_whole_file(system_files(), path_);
  ordered_json row = last_row(rows);
  if (!row.is_object()) return;  // somebody has written into the file
  add_losses(validation, row);
  rows.pop_back();
  rows.erase(rows.rfind('\n') + 1);  // npos + 1: all, of a single row
  stream_.close();
  write_durable_file(path_, rows + row.dump() + '\n');
  stream_.open(path_, std::ios::app);
  if (!stream_) throw IoError({.operation = "open", .path = path_, .error_number = errno});
  ordered_json losses;
  add_losses(validation, losses);
  events_.add(row.value("step", std::int64_t{0}), now_s(), scalars_of(losses));
}

bool lacks_validation_loss(const std::string& run_dir, std::int64_t step) {
  const std::string path = path_in(run_dir);
  if (!system_files().exists(path)) return false;
  const ordered_json row = last_row(read_whole_file(system_files(), path));
  return row.is_object() && row.contains("step") && row["step"] == step &&
         !row.contains(kValidationLossKey);
}

std::int64_t last_step_in_rows(const std::string& run_dir) {
  const std::string path = path_in(run_dir);
  if (!system_files().exists(path)) return 0;
  const std::string rows = read_whole_file(system_files(), path);
  const ordered_json row = last_row(rows.substr(0, rows.rfind('\n') + 1));
  const bool has_step = row.is_object() && row.contains("step") && row["step"].is_number_integer();
  return has_step ? row["step"].get<std::int64_t>() : 0;
}

void MetricsFile::sync() { sync_file(path_); }

}  // namespace terrace
