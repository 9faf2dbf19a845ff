#include "runtime/train/trace_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <vector>

#include "base/error.h"

namespace terrace {

TraceFile::TraceFile(const std::string& run_dir, const Program& program, StepRange steps)
    : path_((std::filesystem::path(run_dir) / "trace.json").string()),
      program_(program),
      steps_(steps),
      stream_(path_, std::ios::trunc) {
  if (!stream_) throw IoError({.operation = "open", .path = path_, .error_number = errno});
  stream_ << R"({"displayTimeUnit":"ms","traceEvents":[)";
  add_track_names();
}

void TraceFile::add_track_names() {
  add_event(R"({"name":"process_name","ph":"M","pid":0,"tid":0,"args":{"name":"rank 0"}})");
  for (std::size_t lane = 0; lane < kLaneCount; ++lane) {
    const bool used = std::any_of(program_.ops.begin(), program_.ops.end(), [lane](const Op& op) {
      return static_cast<std::size_t>(op.lane) == lane;
    });
    if (!used) continue;
    add_event(
        fmt::format(R"({{"name":"thread_name","ph":"M","pid":0,"tid":{},"args":{{"name":"{}"}}}})",
                    lane, name_of(static_cast<Lane>(lane))));
    add_event(fmt::format(
        R"({{"name":"thread_sort_index","ph":"M","pid":0,"tid":{0},"args":{{"sort_index":{0}}}}})",
        lane));
  }
}

void TraceFile::add(const RunReport& report, const StepWaits& waits) {
  const bool traced = report.step >= steps_.first && report.step <= steps_.last;
  if (traced && origin_ns_ == 0) {
    for (const OpTime& time : report.times) {
      if (time.end_ns == 0) continue;
      if (origin_ns_ == 0 || time.start_ns < origin_ns_) origin_ns_ = time.start_ns;
    }
  }
  for (OpId op = 0; op < static_cast<OpId>(program_.ops.size()); ++op) {
    if (report.times[op].end_ns == 0) continue;
    if (traced) add_op(report, op, waits);
    std::int64_t& last = last_end_ns_.at(static_cast<std::size_t>(program_.ops[op].lane));
    last = std::max(last, report.times[op].end_ns);
  }
  if (traced) check_stream();
}

void TraceFile::add_op(const RunReport& report, OpId id, const StepWaits& waits) {
  const Op& op = program_.ops[id];
  const OpTime& time = report.times[id];
  // Deferred ops belong to the step before the report's. In a drain they belong to the report's own
  // step, because a drain has the number of the step that it completes.
  const std::int64_t step = report.step - (op.is_deferred() && report.part != Part::kDrain ? 1 : 0);
  const std::string arguments =
      fmt::format(R"("step":{},"bytes":{:.0f},"flops":{:.0f})", step, op.cost.bytes, op.cost.flops);
  const std::string name = describe(program_, op);
  if (!completes_in_order(op.lane)) {
    add_async(name, fmt::format("{}.{}", report.step, id), op.lane, time, arguments);
    add_transfer(op.lane, time);
    return;
  }
  const std::int64_t idle_since =
      std::max(last_end_ns_.at(static_cast<std::size_t>(op.lane)), origin_ns_);
  const Predecessor cause = waits.last_predecessor(id);
  const std::int64_t until = std::min(cause.time.end_ns, time.start_ns);
  if (cause.op != kNoOp && until > idle_since) {
    add_event(slice("wait for " + describe(program_, program_.ops[cause.op]), "wait", op.lane,
                    {idle_since, until}, ""));
  }
  add_event(slice(name, name_of(op.lane), op.lane, time, arguments));
}

// Returns the JSON of a slice. The names of ops consist of letters, digits and signs that JSON does
// not escape.
std::string TraceFile::slice(std::string_view name, std::string_view category, Lane lane,
                             const OpTime& time, std::string_view arguments) const {
  return fmt::format(R"({{"name":"{}","cat":"{}","ph":"X","pid":0,"tid":{},)"
                     R"("ts":{:.3f},"dur":{:.3f},"args":{{{}}}}})",
                     name, category, static_cast<int>(lane), time_us(time.start_ns),
                     time_us(time.end_ns) - time_us(time.start_ns), arguments);
}

void TraceFile::add_async(std::string_view name, std::string_view id, Lane lane, const OpTime& time,
                          std::string_view arguments) {
  const auto add_phase = [&](char phase, std::int64_t at_ns, std::string_view values) {
    add_event(fmt::format(R"({{"name":"{}","cat":"{}","ph":"{}","id":"{}","pid":0,"tid":{},)"
                          R"("ts":{:.3f},"args":{{{}}}}})",
                          name, name_of(lane), phase, id, static_cast<int>(lane), time_us(at_ns),
                          values));
  };
  add_phase('b', time.start_ns, arguments);
  add_phase('e', time.end_ns, "");
}

// Transfers start in program order, so the times when any is in flight form a list of intervals.
void TraceFile::add_transfer(Lane lane, const OpTime& time) {
  InFlight& now = in_flight_.at(static_cast<std::size_t>(lane));
  if (now.transfers > 0 && time.start_ns > now.time.end_ns) close_transfers(lane);
  if (now.transfers == 0) now.time = time;
  now.time.end_ns = std::max(now.time.end_ns, time.end_ns);
  ++now.transfers;
}

void TraceFile::close_transfers(Lane lane) {
  InFlight& now = in_flight_.at(static_cast<std::size_t>(lane));
  if (now.transfers == 0) return;
  add_event(slice("in flight", name_of(lane), lane, now.time,
                  fmt::format(R"("transfers":{})", now.transfers)));
  now = {};
}

void TraceFile::add_event(const std::string& event) {
  stream_ << (first_ ? "\n" : ",\n") << event;
  first_ = false;
}

void TraceFile::end_document() {
  is_complete_ = true;
  close_transfers(Lane::kRead);
  close_transfers(Lane::kWrite);
  stream_ << "\n]}\n" << std::flush;
}

std::string TraceFile::finish() {
  end_document();
  check_stream();
  return fmt::format("trace of steps {} to {}: {}; https://ui.perfetto.dev opens it", steps_.first,
                     steps_.last, path_);
}

TraceFile::~TraceFile() {
  if (!is_complete_) end_document();
}

void TraceFile::check_stream() {
  if (stream_) return;
  throw IoError({.operation = "write", .path = path_, .error_number = errno},
                "free space in the run directory, or leave --trace-steps out");
}

}  // namespace terrace
