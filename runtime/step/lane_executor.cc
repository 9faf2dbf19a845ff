#include "runtime/step/lane_executor.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "base/check.h"

namespace terrace {
namespace {

bool on_stream(Lane lane) {
  return lane == Lane::kCompute || lane == Lane::kUpload || lane == Lane::kDownload;
}

// A number that only grows, and that threads wait for.
class Progress {
 public:
  void advance(std::int64_t to) {
    value_.store(to, std::memory_order_release);
    value_.notify_all();
  }
  void wait_for(std::int64_t at_least) const {
    std::int64_t now = value_.load(std::memory_order_acquire);
    while (now < at_least) {
      value_.wait(now, std::memory_order_acquire);
      now = value_.load(std::memory_order_acquire);
    }
  }

 private:
  std::atomic<std::int64_t> value_{0};
};

struct Run {
  std::int64_t number = 0;  // counted from 1
  Part part = Part::kBody;
  RunInput input;
};

// Seconds during which at least one of the intervals was open.
double covered_seconds(std::vector<OpTime> times) {
  std::sort(times.begin(), times.end(),
            [](const OpTime& a, const OpTime& b) { return a.start_ns < b.start_ns; });
  std::int64_t covered = 0;
  std::int64_t until = 0;
  for (const OpTime& time : times) {
    const std::int64_t begin = std::max(time.start_ns, until);
    if (time.end_ns > begin) covered += time.end_ns - begin;
    until = std::max(until, time.end_ns);
  }
  return static_cast<double>(covered) * 1e-9;
}

}  // namespace

std::span<std::byte> bytes_of(const Program& program, const ExecutorMemory& memory,
                              const Access& access) {
  const Buffer& buffer = program.buffers.at(access.buffer);
  TERRACE_CHECK(buffer.tier != Tier::kNvme);
  const std::span<std::byte> arena = buffer.tier == Tier::kDevice ? memory.device : memory.host;
  TERRACE_CHECK_LE(buffer.offset + access.offset + access.size_bytes, arena.size());
  return arena.subspan(buffer.offset + access.offset, access.size_bytes);
}

class LaneExecutor::Impl {
 public:
  Impl(const Program& program, ExecutorMemory memory, Device& device, BlockStore* store,
       OpBodies& bodies, const Clock& clock)
      : program_(program),
        memory_(std::move(memory)),
        store_(store),
        bodies_(bodies),
        clock_(clock),
        done_(program.ops.size()) {
    for (auto& side : sides_) {
      for (std::size_t i = 0; i < program.ops.size(); ++i) side.emplace_back(*this, program.ops[i]);
    }
    for (std::size_t l = 0; l < kLaneCount; ++l) make_lane(static_cast<Lane>(l), device);
    for (std::size_t l = 0; l < kLaneCount; ++l) {
      if (lane_ops_[l].empty()) continue;
      threads_.emplace_back([this, l] { serve(static_cast<Lane>(l)); });
    }
  }

  ~Impl() {
    while (in_flight() > 0) wait_for_run(++retired_);
    stopping_.store(true);
    published_.advance(started_ + 1);
    for (std::thread& thread : threads_) thread.join();
  }

  void start(Part part, const RunInput& input) {
    TERRACE_CHECK_LT(in_flight(), 2);
    ++started_;
    runs_.at(started_ % 2) = Run{started_, part, input};
    published_.advance(started_);
  }

  RunReport retire() {
    TERRACE_CHECK_LT(0, in_flight());
    ++retired_;
    wait_for_run(retired_);
    retired_for_lanes_.store(retired_, std::memory_order_release);
    {
      const std::lock_guard lock(error_mutex_);
      if (error_) std::rethrow_exception(error_);
    }
    return report(runs_.at(retired_ % 2));
  }

  int in_flight() const { return static_cast<int>(started_ - retired_); }

 private:
  // An op in one of the two runs that may be in flight.
  class OpRun final : public StreamTask, public IoCompletion {
   public:
    OpRun(Impl& owner, const Op& op) : owner_(owner), op_(op) {}

    void run(NativeStream stream) noexcept override { owner_.run_body(op_, *active, stream); }
    void done(const IoOutcome& outcome) noexcept override {
      time.end_ns = owner_.clock_.now_ns();
      owner_.io_done(op_, *active, outcome);
    }

    const Run* active = nullptr;
    OpTime time;                   // of host lanes
    std::unique_ptr<Event> begin;  // of stream lanes
    std::unique_ptr<Event> end;

   private:
    Impl& owner_;
    const Op& op_;
  };

  void make_lane(Lane lane, Device& device) {
    const auto l = static_cast<std::size_t>(lane);
    for (OpId i = 0; i < static_cast<OpId>(program_.ops.size()); ++i) {
      if (program_.ops[i].lane == lane) lane_ops_[l].push_back(i);
    }
    if (!on_stream(lane) || lane_ops_[l].empty()) return;
    streams_[l] = device.create_stream(name_of(lane));
    for (const OpId op : lane_ops_[l]) {
      for (auto& side : sides_) {
        side[op].begin = device.create_event();
        side[op].end = device.create_event();
      }
    }
  }

  // --- the lane threads --------------------------------------------------------------------------

  void serve(Lane lane) {
    for (std::int64_t number = 1;; ++number) {
      published_.wait_for(number);
      if (stopping_.load()) return;
      const Run& run = runs_.at(number % 2);
      for (const OpId op : lane_ops_[static_cast<std::size_t>(lane)]) issue(op, run);
    }
  }

  void issue(OpId id, const Run& run) {
    const Op& op = program_.ops[id];
    OpRun& op_run = sides_.at(run.number % 2)[id];
    op_run.active = &run;
    wait_for_edges(op, run);
    const bool works = takes_part(op, run.part) && !failed_.load(std::memory_order_acquire);
    if (on_stream(op.lane)) {
      issue_on_stream(op, op_run, run, works);
      done_[id].advance(run.number);
    } else if (!works) {
      op_run.time = {};
      done_[id].advance(run.number);
    } else if (op.lane == Lane::kRead || op.lane == Lane::kWrite) {
      submit_io(op, op_run);
    } else {
      op_run.time.start_ns = clock_.now_ns();
      run_body(op, run, NativeStream{});
      op_run.time.end_ns = clock_.now_ns();
      done_[id].advance(run.number);
    }
  }

  void wait_for_edges(const Op& op, const Run& run) {
    for (const Dependency& edge : op.after) {
      const std::int64_t number = run.number - edge.distance;
      if (number <= retired_for_lanes_.load(std::memory_order_acquire)) continue;
      const Lane other = program_.ops[edge.op].lane;
      done_[edge.op].wait_for(number);
      if (!on_stream(other)) continue;
      Event& event = *sides_.at(number % 2)[edge.op].end;
      if (on_stream(op.lane)) {
        streams_[static_cast<std::size_t>(op.lane)]->wait(event);
      } else {
        event.wait();
      }
    }
  }

  void issue_on_stream(const Op& op, OpRun& op_run, const Run& run, bool works) {
    Stream& stream = *streams_[static_cast<std::size_t>(op.lane)];
    stream.record(*op_run.begin);
    if (works) {
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

  void submit_io(const Op& op, OpRun& op_run) {
    const bool reads = op.lane == Lane::kRead;
    const Access& extent = reads ? op.reads.front() : op.writes.front();
    const Access& memory = reads ? op.writes.front() : op.reads.front();
    IoRequest request;
    request.direction = reads ? IoRequest::Direction::kRead : IoRequest::Direction::kWrite;
    request.extent = memory_.extents.at(program_.buffers[extent.buffer].offset);
    request.memory = memory_of(memory);
    request.completion = &op_run;
    op_run.time.start_ns = clock_.now_ns();
    store_->submit(request);
  }

  // --- completions -------------------------------------------------------------------------------

  void run_body(const Op& op, const Run& run, NativeStream stream) noexcept {
    if (failed_.load(std::memory_order_acquire)) return;
    try {
      bodies_.run(op, run.input, stream);
    } catch (...) {
      fail(std::current_exception());
    }
  }

  void io_done(const Op& op, const Run& run, const IoOutcome& outcome) noexcept {
    try {
      outcome.throw_if_failed();
    } catch (...) {
      fail(std::current_exception());
    }
    done_[&op - program_.ops.data()].advance(run.number);
  }

  void fail(std::exception_ptr error) noexcept {
    const std::lock_guard lock(error_mutex_);
    if (!error_) error_ = std::move(error);
    failed_.store(true, std::memory_order_release);
  }

  void wait_for_run(std::int64_t number) {
    for (std::size_t i = 0; i < program_.ops.size(); ++i) {
      done_[i].wait_for(number);
      if (on_stream(program_.ops[i].lane)) sides_.at(number % 2)[i].end->wait();
    }
  }

  RunReport report(const Run& run) {
    RunReport report;
    report.step = run.input.step;
    report.part = run.part;
    std::array<std::vector<OpTime>, kLaneCount> lanes;
    for (std::size_t i = 0; i < program_.ops.size(); ++i) {
      const Op& op = program_.ops[i];
      const OpRun& op_run = sides_.at(run.number % 2)[i];
      report.times.push_back({});
      if (!takes_part(op, run.part)) continue;
      OpTime& time = report.times.back();
      time = on_stream(op.lane) ? OpTime{op_run.begin->reached_ns(), op_run.end->reached_ns()}
                                : op_run.time;
      const auto lane = static_cast<std::size_t>(op.lane);
      lanes[lane].push_back(time);
      add_bytes(op, report);
      if (op.lane == Lane::kCompute && report.first_compute_ns == 0) {
        report.first_compute_ns = time.start_ns;
      }
    }
    for (std::size_t l = 0; l < kLaneCount; ++l) {
      report.busy_s[l] = covered_seconds(std::move(lanes[l]));
    }
    return report;
  }

  void add_bytes(const Op& op, RunReport& report) const {
    if (op.find(Role::kTarget) == nullptr && op.kind != OpKind::kInput) return;
    report.bytes[static_cast<std::size_t>(op.lane)] += op.cost.bytes;
    if (op.account != Account::kParameters) return;
    const bool reads = op.lane == Lane::kRead;
    if (reads) report.parameter_read_bytes += op.cost.bytes;
    const bool unified = program_.compute_tier == Tier::kHost;
    if (op.lane == Lane::kUpload || (reads && unified)) {
      report.parameter_upload_bytes += op.cost.bytes;
    }
  }

  std::span<std::byte> memory_of(const Access& access) const {
    return bytes_of(program_, memory_, access);
  }

  // Constant after construction.
  const Program& program_;
  ExecutorMemory memory_;
  BlockStore* store_;
  OpBodies& bodies_;
  const Clock& clock_;
  std::array<std::vector<OpId>, kLaneCount> lane_ops_;
  std::array<std::unique_ptr<Stream>, kLaneCount> streams_;

  // Run n uses side n % 2.
  std::array<std::deque<OpRun>, 2> sides_;
  std::array<Run, 2> runs_;
  std::vector<Progress> done_;  // the last run in which the op completed; on streams: was issued
  Progress published_;          // the last run started
  std::atomic<bool> stopping_{false};
  std::atomic<bool> failed_{false};
  std::atomic<std::int64_t> retired_for_lanes_{0};

  std::mutex error_mutex_;
  std::exception_ptr error_;  // guarded by error_mutex_

  // Owned by the caller's thread.
  std::int64_t started_ = 0;
  std::int64_t retired_ = 0;

  std::vector<std::thread> threads_;
};

LaneExecutor::LaneExecutor(const Program& program, ExecutorMemory memory, Device& device,
                           BlockStore* store, OpBodies& bodies, const Clock& clock)
    : impl_(std::make_unique<Impl>(program, std::move(memory), device, store, bodies, clock)) {}

LaneExecutor::~LaneExecutor() = default;

void LaneExecutor::start(Part part, const RunInput& input) { impl_->start(part, input); }

RunReport LaneExecutor::retire() { return impl_->retire(); }

int LaneExecutor::runs_in_flight() const { return impl_->in_flight(); }

}  // namespace terrace
