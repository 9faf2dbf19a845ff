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
#include "base/clock.h"
#include "base/error.h"
#include "bench/bench_list.h"
#include "bench/bench_only.h"
#include "bench/call_count.h"
#include "bench/collective_plan.h"
#include "bench/network_probe.h"
#include "memory/host/host_memory.h"
#include "memory/host/streaming_copy.h"
#include "memory/host/worker_arena.h"
#include "optim/stream_pass.h"
#include "parallel/launch_environment.h"
#include "parallel/mpi/mpi_session.h"
#include "parallel/thread_communicator.h"

// Columns and factors are as in nccl-tests. `size` is all the data of the call (for all_gather and
// reduce_scatter the whole buffer), and algbw = size / time. busbw is algbw times the part that a
// rank must send, so that it can be compared with the speed of a link or a copy, whatever the
// number of ranks.
namespace terrace {
namespace {

struct CollectiveCase {
  CollectiveKind kind;
  std::string_view name;
  double (*bus_factor)(double ranks);
};

double part_of_others(double ranks) { return (ranks - 1) / ranks; }

constexpr auto kCases = std::to_array<CollectiveCase>(
    {{CollectiveKind::kAllReduce, "all_reduce", [](double n) { return 2 * part_of_others(n); }},
     {CollectiveKind::kReduceScatter, "reduce_scatter", part_of_others},
     {CollectiveKind::kAllGather, "all_gather", part_of_others},
     {CollectiveKind::kAllToAll, "all_to_all", part_of_others},
     {CollectiveKind::kBroadcast, "broadcast", [](double) { return 1.0; }}});

struct Measured {
  const CollectiveCase* what = nullptr;
  DType dtype = DType::kF32;
  std::size_t bytes = 0;
  int iterations = 1;
};

// The buffers of one rank. They are touched, and never zero.
class RankBuffers {
 public:
  explicit RankBuffers(std::size_t bytes)
      : source_(bytes, HostMemoryOptions{}), target_(bytes, HostMemoryOptions{}) {
    const auto fill = [](std::span<std::byte> memory) {
      std::fill_n(reinterpret_cast<float*>(memory.data()), memory.size() / sizeof(float), 1.25F);
    };
    fill(source_.bytes());
    fill(target_.bytes());
  }

  void call(Communicator& ranks, const Measured& measured) {
    const TensorView source = view_of(source_, measured, 1);
    const TensorView target = view_of(target_, measured, 1);
    switch (measured.what->kind) {
      case CollectiveKind::kAllReduce:
        return ranks.all_reduce(target, ReduceOp::kSum, {});
      case CollectiveKind::kReduceScatter:
        return ranks.reduce_scatter(view_of(target_, measured, ranks.size()), source,
                                    ReduceOp::kSum, {});
      case CollectiveKind::kAllGather:
        return ranks.all_gather(target, view_of(source_, measured, ranks.size()), {});
      case CollectiveKind::kAllToAll:
        return ranks.all_to_all(target, source, {});
      default:
        return ranks.broadcast(target, 0, {});
    }
  }
  std::span<std::byte> source(std::size_t bytes) { return source_.bytes().first(bytes); }
  std::span<std::byte> target(std::size_t bytes) { return target_.bytes().first(bytes); }

 private:
  static TensorView view_of(HostMemory& memory, const Measured& measured, int parts) {
    const std::size_t elements = measured.bytes / size_of(measured.dtype);
    return view(memory.bytes().data(), measured.dtype,
                static_cast<std::int64_t>(elements / static_cast<std::size_t>(parts)));
  }

  HostMemory source_;
  HostMemory target_;
};

// Returns the seconds of one `body`, from when all ranks begin until all are done.
double seconds_of(Communicator& ranks, int iterations, const std::function<void()>& body) {
  const SystemClock clock;
  const auto meet = [&] { ranks.all_reduce(view(std::span<float>()), ReduceOp::kMax, {}); };
  meet();
  const std::int64_t begin = clock.now_ns();
  for (int i = 0; i < iterations; ++i) body();
  meet();
  return static_cast<double>(clock.now_ns() - begin) / 1e9 / iterations;
}

// Names a size without the bytes that whole lines for every rank have added, less than a KiB.
std::string size_name(std::size_t bytes) {
  const std::size_t kib = bytes / kKiB;
  constexpr std::size_t kOfMiB = kMiB / kKiB;
  return kib % kOfMiB == 0 ? fmt::format("{}mib", kib / kOfMiB) : fmt::format("{}kib", kib);
}

std::string name_of(std::string_view prefix, const Measured& measured) {
  return fmt::format("{}_{}_{}_{}", prefix, measured.what->name, name_of(measured.dtype),
                     size_name(measured.bytes));
}

// Returns the wanted measurements: every collective in one type, then in the other.
std::vector<Measured> measured_of(std::string_view prefix, const CollectivePlan& plan,
                                  std::size_t bytes) {
  std::vector<Measured> measured;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const CollectiveCase& what : kCases) {
      const Measured one = {&what, dtype, bytes, plan.iterations(bytes)};
      if (is_wanted(plan.options(), name_of(prefix, one))) measured.push_back(one);
    }
  }
  return measured;
}

std::vector<std::size_t> wanted_sizes(std::string_view prefix, const CollectivePlan& plan) {
  std::vector<std::size_t> sizes = plan.sizes();
  std::erase_if(sizes, [&](std::size_t bytes) { return measured_of(prefix, plan, bytes).empty(); });
  return sizes;
}

// The rates of a collective and of its limit.
struct RatesBesideLimit {
  const Samples& value;
  const Samples& limit;
  std::string limit_is;  // in words
};

BenchResult result_of(std::string_view prefix, const Measured& measured, int ranks,
                      const RatesBesideLimit& rates) {
  const Samples& value = rates.value;
  const double factor = measured.what->bus_factor(ranks);
  const auto size = static_cast<double>(measured.bytes);
  BenchResult result{.name = name_of(prefix, measured),
                     .value = value,
                     .limit = rates.limit,
                     .limit_is = rates.limit_is};
  const bool reduces = measured.what->kind == CollectiveKind::kAllReduce ||
                       measured.what->kind == CollectiveKind::kReduceScatter;
  const std::size_t count = measured.bytes / size_of(measured.dtype);
  result.details = {
      number_detail("ranks", "ranks", ranks),
      number_detail("size", "bytes", size),
      number_detail("count", "elements", static_cast<double>(count)),
      {"time", "s", value.mapped([=](double bus) { return size * factor / bus * 1e-9; })},
      {"algbw", "GB/s", value.mapped([=](double bus) { return bus / factor; })},
      {"busbw", "GB/s", value}};
  result.notes = {{"type", std::string(name_of(measured.dtype))},
                  {"redop", reduces ? "sum" : "none"}};
  return result;
}

double bus_rate(const Measured& measured, int ranks, double seconds) {
  return measured.what->bus_factor(ranks) * static_cast<double>(measured.bytes) / seconds / 1e9;
}

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

  double collective(const Measured& measured, CallCount& calls) {
    return rate(measured, calls,
                [&](std::size_t rank) { buffers_[rank].call(*communicators_[rank], measured); });
  }
  std::vector<BareWay> bare_ways(const Measured& measured) {
    return bare_->ways_of(measured.what->kind, measured.bytes);
  }
  // Returns the rate of a way, in the same unit.
  double bare(const Measured& measured, const BareWay& way, CallCount& calls) {
    return rate(measured, calls, way.run);
  }

 private:
  int size() const { return static_cast<int>(communicators_.size()); }

  double rate(const Measured& measured, CallCount& calls,
              const std::function<void(std::size_t)>& body) {
    const int count = calls.of([&] { return on_all(1, body); });
    return bus_rate(measured, size(), on_all(count, body));
  }

  double on_all(int iterations, const std::function<void(std::size_t)>& body) {
    double seconds = 0;
    std::vector<std::jthread> threads;
    for (std::size_t rank = 1; rank < communicators_.size(); ++rank) {
      threads.emplace_back([this, rank, iterations, &body] {
        seconds_of(*communicators_[rank], iterations, [&] { body(rank); });
      });
    }
    seconds = seconds_of(*communicators_[0], iterations, [&] { body(0); });
    return seconds;
  }

  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<RankBuffers> buffers_;
  std::unique_ptr<BareCollectives> bare_;
};

// A kind of collective, and all ways that are measured as its limits.
struct BareLimit {
  Measured measured;
  std::vector<BareWay> ways;
  std::size_t first = 0;  // of its measurements
};

constexpr std::string_view kThreads = "thread";
constexpr std::string_view kProcesses = "mpi";

std::vector<std::string> names_of(std::string_view prefix, const CollectivePlan& plan) {
  std::vector<std::string> names;
  for (const std::size_t bytes : plan.sizes()) {
    for (const Measured& one : measured_of(prefix, plan, bytes)) {
      names.push_back(name_of(prefix, one));
    }
  }
  if (prefix == kProcesses && is_wanted(plan.options(), kMessageLatency)) {
    names.emplace_back(kMessageLatency);
  }
  return names;
}

// The measurements of one size: all collectives, then all ways that are their limits.
class ThreadMeasurements {
 public:
  // `seconds`: of a measurement.
  ThreadMeasurements(ThreadRanks& ranks, const CollectivePlan& plan, std::size_t bytes,
                     double seconds)
      : plan_(plan), measured_(measured_of(kThreads, plan, bytes)) {
    std::vector<Measurement> measurements;
    for (const Measured& one : measured_) {
      CallCount& calls = calls_.emplace_back(one.iterations, seconds);
      measurements.emplace_back([&] { return ranks.collective(one, calls); });
    }
    for (const CollectiveCase& what : kCases) {
      if (std::ranges::find(measured_, &what, &Measured::what) == measured_.end()) continue;
      Measured bare = {&what, DType::kF32, bytes, plan.iterations(bytes)};
      limits_.push_back({bare, ranks.bare_ways(bare)});
    }
    for (BareLimit& limit : limits_) {
      limit.first = measurements.size();
      for (const BareWay& way : limit.ways) {
        CallCount& calls = calls_.emplace_back(limit.measured.iterations, seconds);
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
      record.put(result_of(kThreads, measured_[i], plan_.ranks(),
                           {samples[i], of_ways[best],
                            fmt::format("the necessary data movement, on {} threads: {}",
                                        plan_.ranks(), limit.ways[best].is)}));
    }
  }

  const CollectivePlan& plan_;
  const std::vector<Measured> measured_;
  std::vector<BareLimit> limits_;
  std::deque<CallCount> calls_;              // of each measurement
  std::optional<InterleavedRounds> rounds_;  // refer to the three above
};

// Returns about how many measurements there are: collectives of each type, and the ways that are
// their limits.
std::size_t measurements_of(std::size_t sizes) { return 24 * sizes; }

void bench_threads(const CollectivePlan& plan, BenchRecord& record, Log& log) {
  log.info(fmt::format("bench collective: {} ranks, run as threads", plan.ranks()));
  record.expect(names_of(kThreads, plan));
  const std::vector<std::size_t> sizes = wanted_sizes(kThreads, plan);
  if (sizes.empty()) return;
  ThreadRanks ranks(plan.ranks(), sizes.back());
  // The measurements of a size are made when their first round is due, and are told how much time
  // is left then.
  std::vector<std::unique_ptr<ThreadMeasurements>> all(sizes.size());
  deal_rounds(all.size(), plan.rounds(), record, [&](std::size_t size, const Rounds& rounds) {
    if (all[size] == nullptr) {
      const double seconds = seconds_of_measurement(record, measurements_of(sizes.size() - size));
      all[size] = std::make_unique<ThreadMeasurements>(ranks, plan, sizes[size], seconds);
    }
    all[size]->take(rounds, record);
  });
}

// The measurements of one size between processes: the communicator's collectives, then the MPI
// library's own.
class ProcessMeasurements {
 public:
  struct Worlds {
    Communicator& ours;
    Communicator& library;
    RankBuffers& buffers;
    const std::string& network;
    bool is_first = false;  // this rank has the results
  };

  ProcessMeasurements(const Worlds& worlds, const CollectivePlan& plan, std::size_t bytes,
                      double seconds)
      : worlds_(worlds), plan_(plan), measured_(measured_of(kProcesses, plan, bytes)) {
    std::vector<Measurement> measurements;
    for (Communicator* world : {&worlds.ours, &worlds.library}) {
      for (const Measured& one : measured_) {
        CallCount& calls = calls_.emplace_back(one.iterations, seconds);
        measurements.emplace_back([this, world, &one, &calls] { return rate(*world, one, calls); });
      }
    }
    rounds_.emplace(std::move(measurements));
  }
  ProcessMeasurements(const ProcessMeasurements&) = delete;
  ProcessMeasurements& operator=(const ProcessMeasurements&) = delete;

  void take(Rounds rounds, BenchRecord& record) {
    rounds.agreed = [&](bool wants_end) { return any_wants_end(worlds_.ours, wants_end); };
    rounds_->take(rounds, [&](const std::vector<Samples>& samples) {
      if (worlds_.is_first) put_results(samples, record);
    });
  }

 private:
  double rate(Communicator& world, const Measured& one, CallCount& calls) {
    const auto call = [&] { worlds_.buffers.call(world, one); };
    const int count =
        calls.of([&] { return longest_of(worlds_.ours, seconds_of(world, 1, call)); });
    return bus_rate(one, world.size(), seconds_of(world, count, call));
  }

  void put_results(const std::vector<Samples>& samples, BenchRecord& record) const {
    for (std::size_t i = 0; i < measured_.size(); ++i) {
      const bool is_fp32 = measured_[i].dtype == DType::kF32;
      BenchResult result = result_of(
          kProcesses, measured_[i], plan_.ranks(),
          {samples[i], samples[measured_.size() + i],
           fmt::format("the MPI library's collective with the same ranks{}",
                       is_fp32 ? "" : ", using the communicator's bf16 sum as the operation")});
      result.notes.push_back({"network", worlds_.network});
      record.put(std::move(result));
    }
  }

  const Worlds worlds_;
  const CollectivePlan& plan_;
  const std::vector<Measured> measured_;
  std::deque<CallCount> calls_;              // of each measurement
  std::optional<InterleavedRounds> rounds_;  // refer to the two above
};

// Measures ranks as processes against the MPI library's own collectives. All ranks run this; rank 0
// has the results.
void bench_processes(MpiSession& session, const CollectivePlan& plan, BenchRecord& record,
                     Log& log) {
  const bool is_first = session.rank() == 0;
  if (is_first) {
    log.info(fmt::format("bench collective: {} ranks, run as processes", plan.ranks()));
    record.expect(names_of(kProcesses, plan));
  }
  const auto ours = session.make_world("bench", {.hierarchical = plan.options().hierarchical});
  const auto library = session.make_library_world("library");
  const std::string network = name_network(*ours, session.hosts());
  if (is_first) log.info(fmt::format("bench collective: data passes over {}", network));
  if (is_wanted(plan.options(), kMessageLatency)) {
    BenchResult latency = message_latency(*ours, *library, network, plan.rounds());
    if (is_first) record.put(std::move(latency));
  }
  const std::vector<std::size_t> sizes = wanted_sizes(kProcesses, plan);
  if (sizes.empty()) return;
  RankBuffers buffers(sizes.back());
  std::vector<std::unique_ptr<ProcessMeasurements>> all(sizes.size());
  deal_rounds(all.size(), plan.rounds(), record, [&](std::size_t size, const Rounds& rounds) {
    if (all[size] == nullptr) {
      // The shortest time that any rank has left.
      const double seconds =
          -longest_of(*ours, -seconds_of_measurement(record, measurements_of(sizes.size() - size)));
      all[size] = std::make_unique<ProcessMeasurements>(
          ProcessMeasurements::Worlds{*ours, *library, buffers, network, is_first}, plan,
          sizes[size], seconds);
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

bool is_job_of_processes() {
  const LaunchEnvironment launch = detect_launch(environment_variables());
  return launch.is_mpi_job && launch.size > 1;
}

}  // namespace

std::vector<std::string> names_of_collective(const BenchOptions& options) {
  return names_of(is_job_of_processes() ? kProcesses : kThreads, plan_of_threads(options));
}

BenchCost cost_of_collective(const BenchOptions& options, const MachineSpeed& speed) {
  // There are ten collectives and at least as many ways; a call moves some multiple of its size.
  constexpr double kMeasurements = 24;
  constexpr double kMoves = 2;
  const CollectivePlan plan = plan_of_threads(options);
  BenchCost cost;
  for (const std::size_t bytes : wanted_sizes(kThreads, plan)) {
    const double call_s = kMoves * static_cast<double>(bytes) / speed.copy_bytes_per_s;
    cost.seconds += kMeasurements * options.repetitions * plan.iterations(bytes) * call_s;
  }
  return cost;
}

void bench_collective(const BenchOptions& options, BenchRecord& record, Log& log) {
  check_size(options);
  const LaunchEnvironment launch = detect_launch(environment_variables());
  if (launch.size > 1 && !launch.is_mpi_job) {
    throw ConfigError(fmt::format("{} started {} ranks, but bench collective measures only threads "
                                  "and MPI",
                                  launch.source_is, launch.size),
                      "start it with mpirun or as a single process");
  }
  if (!launch.is_mpi_job || launch.size == 1) {
    return bench_threads(plan_of_threads(options), record, log);
  }
  MpiSession session;
  check_mpi_world(launch, {session.rank(), session.size(), MpiSession::library()});
  try {
    bench_processes(session, CollectivePlan(options, session.size()), record, log);
  } catch (const TimeIsUp& over) {
    // All ranks come here, and end the session as they would after a whole run.
    if (session.rank() == 0) log.info(fmt::format("bench collective: {}", over.what()));
  }
}

}  // namespace terrace
