#include "runtime/step/op_issuer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "runtime/step/covered_time.h"

namespace terrace {
namespace {

// Returns whether the op is work of a stream: all ops of the device's lanes, and, over memory that
// the host cannot reach, ops between ranks and their codes.
bool is_stream_work(const Program& program, const ExecutorMemory& memory, const Op& op) {
  if (op.lane == Lane::kCompute || op.lane == Lane::kUpload || op.lane == Lane::kDownload) {
    return true;
  }
  const bool may_be = is_between_ranks(op.lane) || op.lane == Lane::kCode;
  if (memory.host_reaches_device || !may_be) return false;
  std::size_t of_device = 0;
  for (const auto* accesses : {&op.reads, &op.writes}) {
    for (const Access& access : *accesses) {
      if (program.buffers.at(access.buffer).tier == Tier::kDevice) ++of_device;
    }
  }
  TERRACE_CHECK(of_device == 0 || of_device == op.reads.size() + op.writes.size());
  return of_device != 0;
}

// Returns whether the op is a transfer between the host and a drive.
bool is_transfer(const Op& op) { return is_of_kind(op.lane, LaneKind::kDrive); }

}  // namespace

std::span<std::byte> bytes_of(const Program& program, const ExecutorMemory& memory,
                              const Access& access) {
  const Buffer& buffer = program.buffers.at(access.buffer);
  TERRACE_CHECK(buffer.tier != Tier::kNvme);
  const std::span<std::byte> arena = buffer.tier == Tier::kDevice ? memory.device : memory.host;
  TERRACE_CHECK_LE(buffer.offset + access.offset + access.size_bytes, arena.size());
  return arena.subspan(buffer.offset + access.offset, access.size_bytes);
}

template <typename Work>
void OpIssuer::attempt(const Op& op, std::int64_t run, Work&& work) noexcept {
  try {
    work();
  } catch (const DeviceError& error) {
    const std::string text = fmt::format("{}: {}", describe(program_, op), error.what());
    fail(run, std::make_exception_ptr(DeviceError(text, {})));
  } catch (...) {
    fail(run, std::current_exception());
  }
}

OpIssuer::OpIssuer(const Program& program, ExecutorMemory memory, const LaneServices& services)
    : program_(program),
      memory_(std::move(memory)),
      store_(services.store),
      bodies_(services.bodies),
      clock_(services.clock),
      gate_(services.gate),
      done_(program.ops.size()) {
  TERRACE_CHECK_EQ(program.repetition.times, 1);
  for (auto& side : sides_) {
    for (const Op& op : program.ops) side.emplace_back(*this, op);
  }
  for (const Op& op : program.ops) {
    const bool is_by_caller = is_transfer(op) && bodies_.takes_checksums(op);
    facts_.push_back({.on_stream = is_stream_work(program, memory_, op),
                      .checksums = is_by_caller ? IoRequest::Checksums::kByCaller
                                                : IoRequest::Checksums::kByStore,
                      .changed_group = changed_group(program, op),
                      .waits = op.after});
  }
  for (std::size_t l = 0; l < kLaneCount; ++l) make_lane(static_cast<Lane>(l), services.device);
  report_.times.resize(program.ops.size());
}

void OpIssuer::make_lane(Lane lane, Device& device) {
  const auto l = static_cast<std::size_t>(lane);
  for (OpId i = 0; i < static_cast<OpId>(program_.ops.size()); ++i) {
    if (program_.ops[i].lane == lane) lane_ops_[l].push_back(i);
  }
  const auto last = std::find_if(lane_ops_[l].rbegin(), lane_ops_[l].rend(),
                                 [this](OpId op) { return on_stream(op); });
  if (last == lane_ops_[l].rend()) return;
  streams_[l] = device.create_stream(name_of(lane));
  Dependency before = {*last, 1};
  for (const OpId op : lane_ops_[l]) {
    if (!on_stream(op)) {
      facts(op).waits.push_back(before);
      continue;
    }
    before = {op, 0};
    for (auto& side : sides_) {
      side[op].begin = device.create_event();
      side[op].end = device.create_event();
    }
  }
}

void OpIssuer::begin(std::int64_t run, Part part, const RunInput& input) {
  runs_.at(run % 2) = Run{run, part, input};
}

bool OpIssuer::can_issue(OpId id, std::int64_t run) const {
  const std::vector<Dependency>& waits = facts(id).waits;
  const std::int64_t retired = retired_.load(std::memory_order_acquire);
  const bool is_ready = std::all_of(waits.begin(), waits.end(), [&](const Dependency& edge) {
    const std::int64_t number = run - edge.distance;
    if (number <= retired) return true;
    if (!done_[edge.op].has_reached(number)) return false;
    if (!on_stream(edge.op) || on_stream(id)) return true;
    return sides_.at(number % 2)[edge.op].end->is_reached();
  });
  const std::int32_t gated = is_ready ? gated_group(id, runs_.at(run % 2)) : -1;
  return is_ready && (gated < 0 || gate_->try_pass(gated));
}

void OpIssuer::issue(OpId id, std::int64_t number) {
  const Op& op = program_.ops[id];
  const Run& run = runs_.at(number % 2);
  OpRun& op_run = sides_.at(run.number % 2)[id];
  op_run.active = &run;
  attempt(op, number, [&] { wait_for_edges(id, run); });
  const std::int32_t gated = gated_group(id, run);
  if (gated >= 0) gate_->pass(gated);
  const bool has_work = works(op, run);
  if (on_stream(id)) {
    attempt(op, number, [&] { issue_on_stream(op, op_run, run, has_work); });
    done_[id].advance(run.number);
  } else if (!has_work) {
    op_run.time = {};
    done_[id].advance(run.number);
  } else if (is_transfer(op)) {
    submit_io(id, op_run);
  } else {
    op_run.time.start_ns = clock_.now_ns();
    run_body(op, run, NativeStream{});
    op_run.time.end_ns = clock_.now_ns();
    done_[id].advance(run.number);
  }
}

void OpIssuer::wait_for_edges(OpId id, const Run& run) {
  for (const Dependency& edge : facts(id).waits) {
    const std::int64_t number = run.number - edge.distance;
    if (number <= retired_.load(std::memory_order_acquire)) continue;
    done_[edge.op].wait_for(number);
    if (!on_stream(edge.op)) continue;
    Event& event = *sides_.at(number % 2)[edge.op].end;
    if (on_stream(id)) {
      streams_[static_cast<std::size_t>(program_.ops[id].lane)]->wait(event);
    } else {
      event.wait();
    }
  }
}

bool OpIssuer::works(const Op& op, const Run& run) const {
  if (!op.parts.contains(run.part) || is_left_out(op, run.input.micro_batches)) return false;
  if (!failure_.reaches(run.number)) return true;
  return is_between_ranks(op.lane) && failure_.ranks_go_on();
}

std::int32_t OpIssuer::gated_group(OpId id, const Run& run) const {
  if (gate_ == nullptr || !works(program_.ops[id], run)) return -1;
  return facts(id).changed_group;
}

void OpIssuer::issue_on_stream(const Op& op, OpRun& op_run, const Run& run, bool has_work) {
  Stream& stream = *streams_[static_cast<std::size_t>(op.lane)];
  stream.record(*op_run.begin);
  if (has_work) {
    if (op.kind == OpKind::kInput) {
      stream.copy(memory_of(op.writes.front()).first(run.input.tokens.size()), run.input.tokens);
    } else if (op.kind == OpKind::kUpload || op.kind == OpKind::kDownload) {
      stream.copy(memory_of(op.writes.front()), memory_of(op.reads.front()));
    } else {
      stream.run(op_run);
    }
  }
  stream.record(*op_run.end);
}

void OpIssuer::submit_io(OpId id, OpRun& op_run) {
  const Op& op = program_.ops[id];
  const bool reads = op.lane == Lane::kRead;
  const Access& extent = reads ? op.reads.front() : op.writes.front();
  const Access& memory = reads ? op.writes.front() : op.reads.front();
  IoRequest request;
  request.direction = reads ? IoRequest::Direction::kRead : IoRequest::Direction::kWrite;
  request.checksums = facts(id).checksums;
  request.extent = memory_.extents.at(program_.buffers[extent.buffer].offset);
  request.memory = memory_of(memory);
  request.completion = &op_run;
  op_run.time.start_ns = clock_.now_ns();
  store_->submit(request);
}

void OpIssuer::run_body(const Op& op, const Run& run, NativeStream stream) noexcept {
  if (works(op, run)) attempt(op, run.number, [&] { bodies_.run(op, run.input, stream); });
}

void OpIssuer::io_done(const Op& op, const Run& run, const IoOutcome& outcome) noexcept {
  try {
    outcome.throw_if_failed();
  } catch (...) {
    fail(run.number, std::current_exception());
  }
  done_[&op - program_.ops.data()].advance(run.number);
}

void OpIssuer::fail(std::int64_t run, const std::exception_ptr& error) noexcept {
  failure_.note(run, error,
                [this](const std::exception_ptr& cause) { return bodies_.failed(cause); });
}

bool OpIssuer::has_completed(std::int64_t run) const {
  for (std::size_t i = 0; i < program_.ops.size(); ++i) {
    if (!done_[i].has_reached(run)) return false;
    if (facts_[i].on_stream && !sides_.at(run % 2)[i].end->is_reached()) return false;
  }
  return true;
}

void OpIssuer::wait_for(std::int64_t run) {
  for (std::size_t i = 0; i < program_.ops.size(); ++i) {
    const Op& op = program_.ops[i];
    done_[i].wait_for(run);
    if (facts_[i].on_stream) attempt(op, run, [&] { sides_.at(run % 2)[i].end->wait(); });
  }
}

const RunReport& OpIssuer::retire(std::int64_t run) {
  retired_.store(run, std::memory_order_release);
  failure_.rethrow_of(run);
  fill_report(runs_.at(run % 2));
  return report_;
}

void OpIssuer::rethrow_failure() const { failure_.rethrow(); }

OpTime OpIssuer::time_of(const Op& op, const OpRun& op_run) const {
  const bool streams = on_stream(static_cast<OpId>(&op - program_.ops.data()));
  return streams ? OpTime{op_run.begin->reached_ns(), op_run.end->reached_ns()} : op_run.time;
}

// Each CoveredTime gets its ops in the order of their starts, because the ops of a lane start in
// the order of the program.
void OpIssuer::fill_report(const Run& run) {
  static_cast<RunTotals&>(report_) = {};
  report_.step = run.input.step;
  report_.part = run.part;
  std::array<CoveredTime, kLaneCount> covered;
  for (std::size_t i = 0; i < program_.ops.size(); ++i) {
    const Op& op = program_.ops[i];
    OpTime& time = report_.times[i];
    time = {};
    if (!op.parts.contains(run.part) || is_left_out(op, run.input.micro_batches)) continue;
    time = time_of(op, sides_.at(run.number % 2)[i]);
    covered.at(static_cast<std::size_t>(op.lane)).add(time);
    const MovedBytes moved = bytes_moved_by(op);
    report_.moved += moved;
    if (op.is_deferred()) report_.moved_by_deferred += moved;
    if (op.lane == Lane::kCompute && report_.first_compute_ns == 0) {
      report_.first_compute_ns = time.start_ns;
    }
  }
  for (std::size_t l = 0; l < kLaneCount; ++l) report_.busy_s[l] = covered[l].seconds();
}

MovedBytes OpIssuer::bytes_moved_by(const Op& op) const {
  MovedBytes moved;
  const bool moves = op.find(Role::kSource) != nullptr || op.kind == OpKind::kInput ||
                     op.kind == OpKind::kGatherSums;
  if (!moves) return moved;
  moved.lanes[static_cast<std::size_t>(op.lane)] = op.cost.bytes;
  if (op.account != Account::kParameters) return moved;
  const bool reads = op.lane == Lane::kRead;
  if (reads) moved.parameter_reads = op.cost.bytes;
  const bool unified = program_.compute_tier == Tier::kHost;
  if (op.lane == Lane::kUpload || (reads && unified)) moved.parameter_uploads = op.cost.bytes;
  return moved;
}

std::span<std::byte> OpIssuer::memory_of(const Access& access) const {
  return bytes_of(program_, memory_, access);
}

}  // namespace terrace
