#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/error.h"
#include "bench/bench_list.h"
#include "memory/host/host_memory.h"
#include "memory/host/streaming_copy.h"
#include "memory/host/worker_arena.h"
#include "optim/stream_pass.h"
#include "parallel/launch_environment.h"
#include "parallel/mpi/mpi_session.h"
#include "parallel/thread_communicator.h"

// Columns and factors are those of nccl-tests: `size` is all the data of the call (of all_gather
// and reduce_scatter the whole), algbw = size / time, and busbw is algbw times what a rank must
// send of it, so that it can be held against the speed of a link or a copy, whatever the number of
// ranks.
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

// Of one rank; touched, and never zero.
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

// Seconds of one `body`, from when all ranks begin until all are done.
double seconds_of(Communicator& ranks, int iterations, const std::function<void()>& body) {
  const SystemClock clock;
  const auto meet = [&] { ranks.all_reduce(view(std::span<float>()), ReduceOp::kMax, {}); };
  meet();
  const std::int64_t begin = clock.now_ns();
  for (int i = 0; i < iterations; ++i) body();
  meet();
  return static_cast<double>(clock.now_ns() - begin) / 1e9 / iterations;
}

class Plan {
 public:
  Plan(const BenchOptions& options, int ranks) : options_(options), ranks_(ranks) {}

  std::vector<std::size_t> sizes() const {
    if (options_.bytes != 0) return {whole_parts(options_.bytes)};
    if (options_.small) return {whole_parts(64 * kKiB)};
    return {whole_parts(kMiB), whole_parts(16 * kMiB), whole_parts(256 * kMiB)};
  }
  std::size_t largest() const { return sizes().back(); }
  // The same on every rank: all make the same calls. A tenth of `seconds`, at some GB/s.
  int iterations(std::size_t bytes) const {
    const double calls = options_.seconds / 10 * 4e9 / static_cast<double>(bytes);
    return std::clamp(static_cast<int>(calls), 1, 1000);
  }
  int ranks() const { return ranks_; }
  int rounds() const { return options_.repetitions; }

 private:
  // Whole lines for every rank.
  std::size_t whole_parts(std::size_t bytes) const {
    return round_up(bytes, 64 * static_cast<std::size_t>(ranks_));
  }

  const BenchOptions& options_;
  const int ranks_;
};

// Every collective in one type, then in the other.
std::vector<Measured> measured_of(const Plan& plan, std::size_t bytes) {
  std::vector<Measured> measured;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const CollectiveCase& what : kCases) {
      measured.push_back({&what, dtype, bytes, plan.iterations(bytes)});
    }
  }
  return measured;
}

// Without what whole lines for every rank have added, which is less than a KiB.
std::string size_name(std::size_t bytes) {
  const std::size_t kib = bytes / kKiB;
  constexpr std::size_t kOfMiB = kMiB / kKiB;
  return kib % kOfMiB == 0 ? fmt::format("{}mib", kib / kOfMiB) : fmt::format("{}kib", kib);
}

std::string name_of(std::string_view prefix, const Measured& measured) {
  return fmt::format("{}_{}_{}_{}", prefix, measured.what->name, name_of(measured.dtype),
                     size_name(measured.bytes));
}

// Rates of a collective beside those of what limits it.
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
  // The part of one of the threads.
  std::function<void(std::size_t thread)> run;
};

// What a collective has to move, and nothing else, shared out evenly among as many threads as there
// are ranks: copies of what a rank needs of others and itself, and of what is summed a loop that
// reads all and writes each sum wherever it has to be. All lie in the memory of the ranks.
class BareCollectives {
 public:
  explicit BareCollectives(std::vector<RankBuffers>& ranks) : ranks_(ranks) {
    for (std::size_t thread = 0; thread < ranks.size(); ++thread) {
      workers_.push_back(std::make_unique<WorkerArena>(1));
    }
  }

  // The quickest of them is the limit. Both types have as many bytes, and the same ways.
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

  // Of all collectives that copy, each thread's part is a rank's number of the pieces.
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

  double collective(const Measured& measured) {
    return bus_rate(measured, size(), on_all(measured.iterations, [&](std::size_t rank) {
                      buffers_[rank].call(*communicators_[rank], measured);
                    }));
  }
  std::vector<BareWay> bare_ways(const Measured& measured) {
    return bare_->ways_of(measured.what->kind, measured.bytes);
  }
  // In the same unit.
  double bare(const Measured& measured, const BareWay& way) {
    return bus_rate(measured, size(), on_all(measured.iterations, way.run));
  }

 private:
  int size() const { return static_cast<int>(communicators_.size()); }

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

// A collective that all limits of its kind are measured beside.
struct BareLimit {
  Measured measured;
  std::vector<BareWay> ways;
  std::size_t first = 0;  // of its measurements
};

void expect_all(std::string_view prefix, const Plan& plan, BenchRecord& record) {
  for (const std::size_t bytes : plan.sizes()) {
    for (const Measured& one : measured_of(plan, bytes)) record.expect({name_of(prefix, one)});
  }
}

// The measurements of one size: all collectives, then all ways that are their limits.
class ThreadMeasurements {
 public:
  ThreadMeasurements(ThreadRanks& ranks, const Plan& plan, std::size_t bytes)
      : plan_(plan), measured_(measured_of(plan, bytes)) {
    for (const Measured& one : measured_) {
      measurements_.emplace_back([&ranks, &one] { return ranks.collective(one); });
    }
    for (const CollectiveCase& what : kCases) {
      Measured bare = {&what, DType::kF32, bytes, plan.iterations(bytes)};
      limits_.push_back({bare, ranks.bare_ways(bare)});
    }
    for (BareLimit& limit : limits_) {
      limit.first = measurements_.size();
      for (const BareWay& way : limit.ways) {
        measurements_.emplace_back(
            [&ranks, &limit, &way] { return ranks.bare(limit.measured, way); });
      }
    }
  }
  ThreadMeasurements(const ThreadMeasurements&) = delete;
  ThreadMeasurements& operator=(const ThreadMeasurements&) = delete;

  const std::vector<Measurement>& all() const { return measurements_; }
  void put_results(const std::vector<Samples>& samples, BenchRecord& record) const {
    for (std::size_t i = 0; i < measured_.size(); ++i) {
      const BareLimit& limit = limits_[i % kCases.size()];
      const auto of_ways = std::span(samples).subspan(limit.first, limit.ways.size());
      const std::size_t best = highest_of(of_ways);
      record.put(result_of("thread", measured_[i], plan_.ranks(),
                           {samples[i], of_ways[best],
                            fmt::format("what it has to move, on {} threads: {}", plan_.ranks(),
                                        limit.ways[best].is)}));
    }
  }

 private:
  const Plan& plan_;
  const std::vector<Measured> measured_;
  std::vector<BareLimit> limits_;
  std::vector<Measurement> measurements_;  // refer to the two above
};

void bench_threads(const Plan& plan, BenchRecord& record, Log& log) {
  log.info(fmt::format("bench collective: {} ranks as threads", plan.ranks()));
  expect_all("thread", plan, record);
  ThreadRanks ranks(plan.ranks(), plan.largest());
  double sizes_left = static_cast<double>(plan.sizes().size());
  for (const std::size_t bytes : plan.sizes()) {
    record.check_time();
    const ThreadMeasurements measurements(ranks, plan, bytes);
    interleave(
        measurements.all(), record.rounds(plan.rounds(), 1 / sizes_left--),
        [&](const std::vector<Samples>& samples) { measurements.put_results(samples, record); });
  }
}

// Ranks as processes, held against the MPI library's own collectives. All ranks run this; rank 0
// has the results.
void bench_processes(MpiSession& session, const Plan& plan, BenchRecord& record, Log& log) {
  const bool is_first = session.rank() == 0;
  if (is_first) {
    log.info(fmt::format("bench collective: {} ranks as processes", plan.ranks()));
    expect_all("mpi", plan, record);
  }
  const auto ours = session.make_world("bench");
  const auto library = session.make_library_world("library");
  RankBuffers buffers(plan.largest());
  double sizes_left = static_cast<double>(plan.sizes().size());
  for (const std::size_t bytes : plan.sizes()) {
    const std::vector<Measured> measured = measured_of(plan, bytes);
    std::vector<Measurement> measurements;
    for (Communicator* world : {ours.get(), library.get()}) {
      for (const Measured& one : measured) {
        measurements.emplace_back([world, &one, &buffers] {
          return bus_rate(one, world->size(),
                          seconds_of(*world, one.iterations, [&] { buffers.call(*world, one); }));
        });
      }
    }
    Rounds rounds = record.rounds(plan.rounds(), 1 / sizes_left--);
    rounds.agreed = [&](bool wants_end) { return any_wants_end(*ours, wants_end); };
    interleave(measurements, rounds, [&](const std::vector<Samples>& samples) {
      for (std::size_t i = 0; i < measured.size() && is_first; ++i) {
        record.put(result_of("mpi", measured[i], plan.ranks(),
                             {samples[i], samples[measured.size() + i],
                              measured[i].dtype == DType::kF32
                                  ? "the MPI library's own collective, same ranks"
                                  : "the MPI library's own collective, same ranks, with the "
                                    "communicator's sum of bf16 as its operation"}));
      }
    });
  }
}

Plan plan_of_threads(const BenchOptions& options) {
  constexpr int kRanksMax = 16;
  return {options, std::clamp(options.threads, 2, kRanksMax)};
}

void check_size(const BenchOptions& options) {
  if (options.bytes % kKiB == 0) return;
  throw ConfigError(
      fmt::format("terrace bench collective: --size {}: no multiple of 1 KiB", options.bytes),
      fmt::format("use {}KiB", divide_up(options.bytes, kKiB)));
}

}  // namespace

BenchCost cost_of_collective(const BenchOptions& options, const MachineSpeed& speed) {
  // Ten collectives and as many ways or more; a call moves some multiple of its size.
  constexpr double kMeasurements = 24;
  constexpr double kMoves = 2;
  const Plan plan = plan_of_threads(options);
  BenchCost cost;
  for (const std::size_t bytes : plan.sizes()) {
    const double call_s = kMoves * static_cast<double>(bytes) / speed.copy_bytes_per_s;
    cost.seconds += kMeasurements * options.repetitions * plan.iterations(bytes) * call_s;
  }
  return cost;
}

void bench_collective(const BenchOptions& options, BenchRecord& record, Log& log) {
  check_size(options);
  const LaunchEnvironment launch = detect_launch(environment_variables());
  if (launch.size > 1 && !launch.is_mpi_job) {
    throw ConfigError(fmt::format("{} started {} ranks, and bench collective measures threads and "
                                  "MPI",
                                  launch.source_is, launch.size),
                      "start it with mpirun, or alone");
  }
  if (!launch.is_mpi_job || launch.size == 1) {
    return bench_threads(plan_of_threads(options), record, log);
  }
  MpiSession session;
  check_mpi_world(launch, {session.rank(), session.size(), MpiSession::library()});
  try {
    bench_processes(session, Plan(options, session.size()), record, log);
  } catch (const TimeIsUp& over) {
    // All ranks are here, and end the session as they would at the end.
    if (session.rank() == 0) log.info(fmt::format("bench collective: {}", over.what()));
  }
}

}  // namespace terrace
