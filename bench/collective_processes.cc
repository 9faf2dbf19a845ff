#include "bench/collective_processes.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "base/error.h"
#include "bench/bench_only.h"
#include "bench/collective_case.h"
#include "bench/network_probe.h"
#include "bench/rounds.h"
#include "bench/timed_calls.h"
#include "memory/host/streaming_copy.h"
#include "parallel/mpi/mpi_session.h"
#include "parallel/sockets/socket_session.h"

namespace terrace {
namespace {

constexpr std::string_view kMpiRanks = "mpi";
constexpr std::string_view kSocketRanks = "socket";

struct ProcessJob {
  std::string_view prefix;
  const CollectivePlan& plan;
  BenchRecord& record;
  Log& log;
};

// The measurements of one size between processes: the communicator's collectives, then their
// limits.
class ProcessMeasurements {
 public:
  struct Ranks {
    Communicator& ours;
    Communicator* library;  // MPI's own; null: the limit is a copy
    RankBuffers& buffers;
    const std::string& network;
    bool is_first = false;  // this rank has the results
  };

  ProcessMeasurements(const Ranks& ranks, const ProcessJob& job, std::size_t bytes, double seconds)
      : ranks_(ranks), job_(job), measured_(measured_collectives(job.prefix, job.plan, bytes)) {
    std::vector<Measurement> measurements;
    for (const bool is_limit : {false, true}) {
      for (const MeasuredCollective& one : measured_) {
        TimedCalls& calls = calls_.emplace_back(one.iterations, seconds);
        measurements.emplace_back([this, is_limit, &one, &calls] {
          if (!is_limit) return rate(ranks_.ours, one, calls);
          return ranks_.library != nullptr ? rate(*ranks_.library, one, calls)
                                           : copy_rate(one, calls);
        });
      }
    }
    rounds_.emplace(std::move(measurements));
  }
  ProcessMeasurements(const ProcessMeasurements&) = delete;
  ProcessMeasurements& operator=(const ProcessMeasurements&) = delete;

  // Returns the longest that a call of a measurement has taken so far, in the mean.
  double longest_call_s() const { return longest_call_s_; }
  // Says how long a call is expected to take, as long as none is measured.
  void expect_call_s(double seconds) { expected_call_s_ = seconds; }

  void take(Rounds rounds, BenchRecord& record) {
    // A rank that ended within a call would end the whole job as a failure.
    rounds.measurement_s = longest_call_s_ > 0 ? longest_call_s_ : expected_call_s_;
    rounds.agreed = [&](bool wants_end) { return any_wants_end(ranks_.ours, wants_end); };
    rounds_->take(rounds, [&](const std::vector<Samples>& samples) {
      if (ranks_.is_first) put_results(samples, record);
    });
  }

 private:
  // Returns the seconds of one call, on the rank where they are the most.
  double seconds_of_one(Communicator& world, TimedCalls& calls, const std::function<void()>& call) {
    const double seconds = calls.seconds_of_call(
        [&](int count) { return longest_of(ranks_.ours, seconds_of_calls(world, count, call)); });
    longest_call_s_ = std::max(longest_call_s_, seconds);
    return seconds;
  }
  double rate(Communicator& world, const MeasuredCollective& one, TimedCalls& calls) {
    return bus_rate(one, world.size(),
                    seconds_of_one(world, calls, [&] { ranks_.buffers.call(world, one); }));
  }
  double copy_rate(const MeasuredCollective& one, TimedCalls& calls) {
    const double seconds = seconds_of_one(ranks_.ours, calls, [&] {
      streaming_copy(ranks_.buffers.target(one.bytes), ranks_.buffers.source(one.bytes));
    });
    return static_cast<double>(one.bytes) / seconds / 1e9;
  }

  std::string limit_of(const MeasuredCollective& one) const {
    if (ranks_.library == nullptr) {
      return "a copy of as many bytes in memory, by all ranks at the same time";
    }
    return fmt::format(
        "the MPI library's collective with the same ranks{}",
        one.dtype == DType::kF32 ? "" : ", using the communicator's bf16 sum as the operation");
  }

  void put_results(const std::vector<Samples>& samples, BenchRecord& record) const {
    for (std::size_t i = 0; i < measured_.size(); ++i) {
      BenchResult result =
          collective_result(job_.prefix, measured_[i], job_.plan.ranks(),
                            {samples[i], samples[measured_.size() + i], limit_of(measured_[i])});
      result.notes.push_back({"network", ranks_.network});
      record.put(std::move(result));
    }
  }

  const Ranks ranks_;
  const ProcessJob& job_;
  const std::vector<MeasuredCollective> measured_;
  std::deque<TimedCalls> calls_;             // of each measurement
  std::optional<InterleavedRounds> rounds_;  // refer to the two above
  double longest_call_s_ = 0;
  double expected_call_s_ = 0;
};

void measure_sizes(const ProcessJob& job, ProcessMeasurements::Ranks ranks) {
  const std::vector<std::size_t> sizes = wanted_collective_sizes(job.prefix, job.plan);
  std::vector<std::unique_ptr<ProcessMeasurements>> all(sizes.size());
  deal_rounds(all.size(), job.plan.rounds(), job.record, [&](std::size_t i, const Rounds& rounds) {
    if (all[i] == nullptr) {
      // The shortest time that any rank has left.
      const std::size_t left = collective_measurements(sizes.size() - i);
      const double seconds = -longest_of(ranks.ours, -seconds_of_measurement(job.record, left));
      all[i] = std::make_unique<ProcessMeasurements>(ranks, job, sizes[i], seconds);
      if (i > 0) {
        const double times = static_cast<double>(sizes[i]) / static_cast<double>(sizes[i - 1]);
        all[i]->expect_call_s(times * all[i - 1]->longest_call_s());
      }
    }
    all[i]->take(rounds, job.record);
  });
}

// All ranks run this. `hosts`: on which they are.
void measure_processes(const ProcessJob& job, Communicator& ours, Communicator* library,
                       int hosts) {
  const bool is_first = ours.rank() == 0;
  if (is_first) {
    job.log.info(fmt::format("bench collective: {} ranks, run as processes", job.plan.ranks()));
    job.record.expect(process_result_names(job.prefix, job.plan));
  }
  const std::string network = name_network(ours, hosts);
  if (is_first) job.log.info(fmt::format("bench collective: data passes over {}", network));
  if (library != nullptr && is_wanted(job.plan.options(), kMessageLatency)) {
    measure_message_latency({ours, *library, network, job.plan.rounds()}, job.record);
  }
  const std::vector<std::size_t> sizes = wanted_collective_sizes(job.prefix, job.plan);
  if (sizes.empty()) return;
  RankBuffers buffers(sizes.back());
  measure_sizes(job, {ours, library, buffers, network, is_first});
}

// Runs `body` with the communicator of a session. If the time is up, all ranks come back, and end
// the session as they would after a whole run.
template <typename Session, typename Body>
void measure_in(Session& session, const BenchOptions& options, Log& log, Body body) {
  try {
    const auto world = session.make_world("bench", {.hierarchical = options.hierarchical});
    const CollectivePlan own(options, session.size());
    const double fewest = -longest_of(*world, -static_cast<double>(own.sizes().size()));
    const CollectivePlan plan(options, session.size(), static_cast<std::size_t>(fewest));
    body(plan, *world);
  } catch (const TimeIsUp& over) {
    if (session.rank() == 0) log.info(fmt::format("bench collective: {}", over.what()));
  }
}

}  // namespace

std::string_view process_ranks_prefix(const LaunchEnvironment& launch) {
  if (launch.size == 1 || launch.source == LaunchSource::kLocalRanks) return "";
  return launch.is_mpi_job && is_mpi_built() ? kMpiRanks : kSocketRanks;
}

std::vector<std::string> process_result_names(std::string_view prefix, const CollectivePlan& plan) {
  std::vector<std::string> names = collective_names(prefix, plan);
  if (prefix == kMpiRanks && is_wanted(plan.options(), kMessageLatency)) {
    names.emplace_back(kMessageLatency);
  }
  return names;
}

void bench_processes(const LaunchEnvironment& launch, const BenchOptions& options,
                     BenchRecord& record, Log& log) {
  if (process_ranks_prefix(launch) == kSocketRanks) {
    SocketSession session(socket_setting(launch));
    return measure_in(session, options, log, [&](const CollectivePlan& plan, Communicator& ours) {
      measure_processes({kSocketRanks, plan, record, log}, ours, nullptr, session.hosts());
    });
  }
  MpiSession session;
  check_mpi_world(launch, {session.rank(), session.size(), MpiSession::library()});
  measure_in(session, options, log, [&](const CollectivePlan& plan, Communicator& ours) {
    const auto library = session.make_library_world("library");
    measure_processes({kMpiRanks, plan, record, log}, ours, library.get(), session.hosts());
  });
}

}  // namespace terrace
