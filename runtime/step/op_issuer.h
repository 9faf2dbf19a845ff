#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/step/lane_executor.h"
#include "runtime/step/run_failure.h"

// The part of an executor that does not depend on its threads: what an op waits for, which work it
// does, how its end is noted, what a run reports. The lane executor calls it from one thread per
// lane. The simulation (tests/sim) calls it from one thread, in an order that comes from a seed.
namespace terrace {

// A number that only grows and that threads wait for.
class Progress {
 public:
  void advance(std::int64_t to) {
    value_.store(to, std::memory_order_release);
    value_.notify_all();
  }
  bool has_reached(std::int64_t number) const {
    return value_.load(std::memory_order_acquire) >= number;
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

// Issues the ops of runs. Runs are numbered from 1, and at most two are in flight: run n is begun
// after run n - 2 is retired.
class OpIssuer {
 public:
  // Borrows everything except the memory's list of extents; see LaneExecutor.
  OpIssuer(const Program& program, ExecutorMemory memory, const LaneServices& services);
  OpIssuer(const OpIssuer&) = delete;
  OpIssuer& operator=(const OpIssuer&) = delete;

  const std::vector<OpId>& lane_ops(Lane lane) const {
    return lane_ops_.at(static_cast<std::size_t>(lane));
  }

  // Begins a run. Called before any op of the run is issued.
  void begin(std::int64_t run, Part part, const RunInput& input);
  // Returns whether issue() would return without waiting. Once this is true it stays true.
  bool can_issue(OpId id, std::int64_t run) const;
  // Issues an op. The ops of a lane are issued in their order, by one thread at a time. Host ops
  // wait on the host, and streams wait for streams. From the run that failed on, ops only wait and
  // complete: see OpBodies::failed().
  void issue(OpId id, std::int64_t run);
  // Returns whether every op of the run was issued and has completed.
  bool has_completed(std::int64_t run) const;
  // Waits until the run has completed. A failure of the device ends the wait; retire() reports it.
  void wait_for(std::int64_t run);
  // Retires the oldest run in flight, which must have completed, and returns its report, which is
  // valid until the next call. Rethrows the first failure of any op, unless only later runs failed.
  const RunReport& retire(std::int64_t run);
  // Rethrows the first failure of any op so far, in whichever run.
  void rethrow_failure() const;

 private:
  struct Run {
    std::int64_t number = 0;
    Part part = Part::kBody;
    RunInput input;
  };

  // The facts about an op that never change.
  struct OpFacts {
    // Whether it is work of a stream of the device. The lane's thread itself does all other ops.
    bool on_stream = false;
    IoRequest::Checksums checksums = IoRequest::Checksums::kByStore;  // of reads and writes
    std::int32_t changed_group = -1;                                  // changed_group()
    // The ops that it waits for. They are its edges, and for a host op also the stream op before it
    // on its lane: a lane is an in-order queue, whatever its ops are.
    std::vector<Dependency> waits;
  };

  // An op in one of the two runs that may be in flight.
  class OpRun final : public StreamTask, public IoCompletion {
   public:
    OpRun(OpIssuer& owner, const Op& op) : owner_(owner), op_(op) {}

    void run(NativeStream stream) noexcept override { owner_.run_body(op_, *active, stream); }
    void done(const IoOutcome& outcome) noexcept override {
      time.end_ns = owner_.clock_.now_ns();
      owner_.io_done(op_, *active, outcome);
    }

    const Run* active = nullptr;
    OpTime time;                   // for host ops
    std::unique_ptr<Event> begin;  // for ops on streams
    std::unique_ptr<Event> end;

   private:
    OpIssuer& owner_;
    const Op& op_;
  };

  void make_lane(Lane lane, Device& device);
  OpFacts& facts(OpId id) { return facts_[static_cast<std::size_t>(id)]; }
  const OpFacts& facts(OpId id) const { return facts_[static_cast<std::size_t>(id)]; }
  bool on_stream(OpId id) const { return facts(id).on_stream; }
  bool works(const Op& op, const Run& run) const;
  // Returns the group whose gate the op has to pass; -1 if there is none.
  std::int32_t gated_group(OpId id, const Run& run) const;
  void wait_for_edges(OpId id, const Run& run);
  void issue_on_stream(const Op& op, OpRun& op_run, const Run& run, bool has_work);
  void submit_io(OpId id, OpRun& op_run);
  void run_body(const Op& op, const Run& run, NativeStream stream) noexcept;
  void io_done(const Op& op, const Run& run, const IoOutcome& outcome) noexcept;
  // Runs `work`. An exception fails the run. A failure of the device is reported with the op that
  // met it.
  template <typename Work>
  void attempt(const Op& op, std::int64_t run, Work&& work) noexcept;
  void fail(std::int64_t run, const std::exception_ptr& error) noexcept;
  void fill_report(const Run& run);
  OpTime time_of(const Op& op, const OpRun& op_run) const;
  MovedBytes bytes_moved_by(const Op& op) const;
  std::span<std::byte> memory_of(const Access& access) const;

  // Constant after construction.
  const Program& program_;
  ExecutorMemory memory_;
  BlockStore* store_;
  OpBodies& bodies_;
  const Clock& clock_;
  HomeGate* gate_;
  std::array<std::vector<OpId>, kLaneCount> lane_ops_;
  std::array<std::unique_ptr<Stream>, kLaneCount> streams_;
  std::vector<OpFacts> facts_;  // per op

  // Run n uses side n % 2.
  std::array<std::deque<OpRun>, 2> sides_;
  std::array<Run, 2> runs_;
  std::vector<Progress> done_;  // the last run in which the op completed; on a stream: was issued
  RunFailure failure_;
  std::atomic<std::int64_t> retired_{0};
  RunReport report_;  // of the run retired last; its memory is kept
};

}  // namespace terrace
