#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "bench/bench_list.h"
#include "bench/collective_case.h"
#include "bench/collective_plan.h"
#include "bench/collective_processes.h"
#include "bench/timed_calls.h"
#include "memory/host/streaming_copy.h"
#include "memory/host/worker_arena.h"
#include "optim/stream_pass.h"
#include "parallel/launch_environment.h"
#include "parallel/thread_communicator.h"

namespace terrace {
namespace {

// A way to move the bytes of a collective.
struct BareWay {
  std::string is;  // in words
  // Does one thread's part.
  std::function<void(std::size_t thread)> run;
};

// The data movement of a collective and nothing else, shared evenly among as many threads as there
// are ranks. It is copies of the data that a rank needs from others and itself or, for sums, a loop
// that reads all and writes each sum wherever it has to be. All data lies in the memory of the
// ranks.
class BareCollectives {
 public:
  explicit BareCollectives(std::vector<RankBuffers>& ranks) : ranks_(ranks) {
    for (std::size_t thread = 0; thread < ranks.size(); ++thread) {
      workers_.push_back(std::make_unique<WorkerArena>(1));
    }
  }

  // Returns the ways, the quickest of which is the limit. Both types have the same number of bytes
  // and the same ways.
  std::vector<BareWay> ways_of(CollectiveKind kind, std::size_t bytes) {
    if (kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter) {
      return sums(kind, bytes);
    }
    return {
        {"streaming copies",
         [this, kind, bytes](std::size_t thread) { copies(kind, bytes, thread, streaming_copy); }},
        {"memcpy", [this, kind, bytes](std::size_t thread) {
           copies(kind, bytes, thread, [](auto target, auto source) {
             std::memcpy(target.data(), source.data(), source.size());
           });
         }}};
  }

 private:
  static constexpr std::size_t kLineBytes = 64;
  using Copy = void(std::span<std::byte> target, std::span<const std::byte> source);

  std::size_t count() const { return ranks_.size(); }

  // Copies one thread's part, which for every collective that copies is one rank's share of the
  // pieces.
  void copies(CollectiveKind kind, std::size_t bytes, std::size_t thread, Copy* copy) {
    const std::size_t part = bytes / count();
    for (std::size_t step = 0; step < count(); ++step) {
      const std::size_t other = (thread + step) % count();
      const std::size_t at = part * other;
      if (kind == CollectiveKind::kBroadcast) {
        if (other == 0) continue;  // the root has it
        const std::size_t mine = part * thread;
        copy(ranks_[other].target(bytes).subspan(mine, part),
             ranks_[0].target(bytes).subspan(mine, part));
      } else {
        const std::size_t from = kind == CollectiveKind::kAllToAll ? part * thread : 0;
        copy(ranks_[thread].target(bytes).subspan(at, part),
             ranks_[other].source(bytes).subspan(from, part));
      }
    }
  }

  std::vector<BareWay> sums(CollectiveKind kind, std::size_t bytes) {
    if (bytes / count() % kLineBytes != 0) {
      return {{"a plain loop over the same bytes",
               [this, kind, bytes](std::size_t thread) { sum_few(kind, bytes, thread); }}};
    }
    std::vector<BareWay> ways;
    for (const bool asks_ahead : {true, false}) {
      for (const bool past_cache : {true, false}) {
        if (kind == CollectiveKind::kAllReduce && past_cache) continue;  // it updates in place
        const StreamForm form = {.asks_ahead = asks_ahead, .past_cache = past_cache};
        ways.push_back(
            {fmt::format("a loop over the same bytes{}{}", past_cache ? ", past the cache" : "",
                         asks_ahead ? ", prefetching" : ""),
             [this, kind, bytes, form](std::size_t thread) { sum(kind, bytes, thread, form); }});
      }
    }
    return ways;
  }

  // Adds a part that is too small for whole cache lines.
  void sum_few(CollectiveKind kind, std::size_t bytes, std::size_t thread) {
    const bool in_place = kind == CollectiveKind::kAllReduce;
    const std::size_t part = bytes / count() / sizeof(float);
    const auto numbers = [part](std::span<std::byte> all, std::size_t place) {
      return std::span(reinterpret_cast<float*>(all.data()) + place * part, part);
    };
    for (std::size_t i = 0; i < part; ++i) {
      float sum = 0;
      for (RankBuffers& rank : ranks_) {
        sum += numbers(in_place ? rank.target(bytes) : rank.source(bytes), thread)[i];
      }
      if (in_place) {
        for (RankBuffers& rank : ranks_) numbers(rank.target(bytes), thread)[i] = sum;
      } else {
        numbers(ranks_[thread].target(bytes), 0)[i] = sum;
      }
    }
  }

  void sum(CollectiveKind kind, std::size_t bytes, std::size_t thread, const StreamForm& form) {
    using Access = StreamedArray::Access;
    const bool in_place = kind == CollectiveKind::kAllReduce;
    const std::size_t part = bytes / count();
    std::size_t width = 16;  // of an element: the loop goes from array to array every 64 of them
    while (part % (64 * width) != 0) width /= 2;
    std::vector<StreamedArray> arrays;
    for (RankBuffers& rank : ranks_) {
      const auto all = in_place ? rank.target(bytes) : rank.source(bytes);
      arrays.push_back({.data = all.subspan(part * thread, part).data(),
                        .bytes_per_element = width,
                        .access = in_place ? Access::kUpdate : Access::kRead});
    }
    if (!in_place) {
      arrays.push_back({.data = ranks_[thread].target(bytes).data(),
                        .bytes_per_element = width,
                        .access = Access::kWrite});
    }
    KernelContext context;
    context.workers = workers_[thread].get();
    stream_pass(context, arrays, static_cast<std::int64_t>(part / width), form);
  }

  std::vector<RankBuffers>& ranks_;
  std::vector<std::unique_ptr<WorkerArena>> workers_;  // by thread
};

// Ranks as threads.
class ThreadRanks {
 public:
  ThreadRanks(int ranks, std::size_t bytes)
      : communicators_(make_thread_communicators(ranks, "bench")) {
    for (int rank = 0; rank < ranks; ++rank) buffers_.emplace_back(bytes);
    bare_ = std::make_unique<BareCollectives>(buffers_);
  }

  double collective(const MeasuredCollective& measured, TimedCalls& calls) {
    return rate(measured, calls,
                [&](std::size_t rank) { buffers_[rank].call(*communicators_[rank], measured); });
  }
  std::vector<BareWay> bare_ways(const MeasuredCollective& measured) {
    return bare_->ways_of(measured.what->kind, measured.bytes);
  }
  // Returns the rate of a way, in the same unit.
  double bare(const MeasuredCollective& measured, const BareWay& way, TimedCalls& calls) {
    return rate(measured, calls, way.run);
  }

 private:
  int size() const { return static_cast<int>(communicators_.size()); }

  double rate(const MeasuredCollective& measured, TimedCalls& calls,
              const std::function<void(std::size_t)>& body) {
    return bus_rate(measured, size(),
                    calls.seconds_of_call([&](int count) { return on_all(count, body); }));
  }

  double on_all(int iterations, const std::function<void(std::size_t)>& body) {
    double seconds = 0;
    std::vector<std::jthread> threads;
    for (std::size_t rank = 1; rank < communicators_.size(); ++rank) {
      threads.emplace_back([this, rank, iterations, &body] {
        seconds_of_calls(*communicators_[rank], iterations, [&] { body(rank); });
      });
    }
    seconds = seconds_of_calls(*communicators_[0], iterations, [&] { body(0); });
    return seconds;
  }

  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<RankBuffers> buffers_;
  std::unique_ptr<BareCollectives> bare_;
};

// A kind of collective, and all ways that are measured as its limits.
struct BareLimit {
  MeasuredCollective measured;
  std::vector<BareWay> ways;
  std::size_t first = 0;  // of its measurements
};

constexpr std::string_view kThreads = "thread";

// The measurements of one size: all collectives, then all ways that are their limits.
class ThreadMeasurements {
 public:
  // `seconds`: of a measurement.
  ThreadMeasurements(ThreadRanks& ranks, const CollectivePlan& plan, std::size_t bytes,
                     double seconds)
      : plan_(plan), measured_(measured_collectives(kThreads, plan, bytes)) {
    std::vector<Measurement> measurements;
    for (const MeasuredCollective& one : measured_) {
      TimedCalls& calls = calls_.emplace_back(one.iterations, seconds);
      measurements.emplace_back([&] { return ranks.collective(one, calls); });
    }
    for (const CollectiveCase& what : collective_cases()) {
      if (std::ranges::find(measured_, &what, &MeasuredCollective::what) == measured_.end())
        continue;
      MeasuredCollective bare = {&what, DType::kF32, bytes, plan.iterations(bytes)};
      limits_.push_back({bare, ranks.bare_ways(bare)});
    }
    for (BareLimit& limit : limits_) {
      limit.first = measurements.size();
      for (const BareWay& way : limit.ways) {
        TimedCalls& calls = calls_.emplace_back(limit.measured.iterations, seconds);
        measurements.emplace_back([&] { return ranks.bare(limit.measured, way, calls); });
      }
    }
    rounds_.emplace(std::move(measurements));
  }
  ThreadMeasurements(const ThreadMeasurements&) = delete;
  ThreadMeasurements& operator=(const ThreadMeasurements&) = delete;

  void take(const Rounds& rounds, BenchRecord& record) {
    rounds_->take(rounds,
                  [&](const std::vector<Samples>& samples) { put_results(samples, record); });
  }

 private:
  void put_results(const std::vector<Samples>& samples, BenchRecord& record) const {
    for (std::size_t i = 0; i < measured_.size(); ++i) {
      const BareLimit& limit = *std::ranges::find(
          limits_, measured_[i].what, [](const BareLimit& one) { return one.measured.what; });
      const auto of_ways = std::span(samples).subspan(limit.first, limit.ways.size());
      const std::size_t best = highest_of(of_ways);
      record.put(collective_result(kThreads, measured_[i], plan_.ranks(),
                                   {samples[i], of_ways[best],
                                    fmt::format("the necessary data movement, on {} threads: {}",
                                                plan_.ranks(), limit.ways[best].is)}));
    }
  }

  const CollectivePlan& plan_;
  const std::vector<MeasuredCollective> measured_;
  std::vector<BareLimit> limits_;
  std::deque<TimedCalls> calls_;             // of each measurement
  std::optional<InterleavedRounds> rounds_;  // refer to the three above
};

void bench_threads(const CollectivePlan& plan, BenchRecord& record, Log& log) {
  log.info(fmt::format("bench collective: {} ranks, run as threads", plan.ranks()));
  record.expect(collective_names(kThreads, plan));
  const std::vector<std::size_t> sizes = wanted_collective_sizes(kThreads, plan);
  if (sizes.empty()) return;
  ThreadRanks ranks(plan.ranks(), sizes.back());
  // The measurements of a size are made when their first round is due, and are told how much time
  // is left then.
  std::vector<std::unique_ptr<ThreadMeasurements>> all(sizes.size());
  deal_rounds(all.size(), plan.rounds(), record, [&](std::size_t size, const Rounds& rounds) {
    if (all[size] == nullptr) {
      const double seconds =
          seconds_of_measurement(record, collective_measurements(sizes.size() - size));
      all[size] = std::make_unique<ThreadMeasurements>(ranks, plan, sizes[size], seconds);
    }
    all[size]->take(rounds, record);
  });
}

CollectivePlan plan_of_threads(const BenchOptions& options) {
  constexpr int kRanksMax = 16;
  return {options, std::clamp(options.threads, 2, kRanksMax)};
}

void check_size(const BenchOptions& options) {
  if (options.bytes % kKiB == 0) return;
  throw ConfigError(
      fmt::format("terrace bench collective: --size {}: not a multiple of 1 KiB", options.bytes),
      fmt::format("use {}KiB", divide_up(options.bytes, kKiB)));
}

}  // namespace

std::vector<std::string> names_of_collective(const BenchOptions& options) {
  const CollectivePlan plan = plan_of_threads(options);
  const std::string_view prefix = process_ranks_prefix(detect_launch(environment_variables()));
  return prefix.empty() ? collective_names(kThreads, plan) : process_result_names(prefix, plan);
}

BenchCost cost_of_collective(const BenchOptions& options, const MachineSpeed& speed) {
  // There are ten collectives and at least as many ways; a call moves some multiple of its size.
  constexpr double kMeasurements = 24;
  constexpr double kMoves = 2;
  constexpr double kMeetingSeconds = 5e-6;  // of a call, in which ranks wait for each other
  const CollectivePlan plan = plan_of_threads(options);
  BenchCost cost;
  for (const std::size_t bytes : wanted_collective_sizes(kThreads, plan)) {
    const double call_s =
        kMeetingSeconds + kMoves * static_cast<double>(bytes) / speed.copy_bytes_per_s;
    cost.seconds += kMeasurements * options.repetitions * plan.iterations(bytes) * call_s;
  }
  return cost;
}

void bench_collective(const BenchOptions& options, BenchRecord& record, Log& log) {
  check_size(options);
  const LaunchEnvironment launch = detect_launch(environment_variables());
  if (process_ranks_prefix(launch).empty()) {
    return bench_threads(plan_of_threads(options), record, log);
  }
  bench_processes(launch, options, record, log);
}

}  // namespace terrace
