#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <memory>
#include <optional>

#include "base/bytes.h"
#include "base/check.h"
#include "base/hash.h"
#include "runtime/bench/bare_drives.h"
#include "runtime/bench/bench_list.h"
#include "runtime/bench/drive_check.h"
#include "runtime/bench/fio_peer.h"
#include "runtime/bench/store_load.h"
#include "runtime/bench/usage_clock.h"

// Two steps for each mix of directions. First every shape of I/O is tried once by the bare loop and
// by fio. Then the best few of each are measured again, in rounds with the store, which is asked
// for requests of some shapes: the best median of the store is held against the best of theirs, and
// processor time against the least that they need with requests of these shapes.
//
// No place of the drive is used by two in a row: what was used a moment ago comes faster from the
// host of a virtual drive, or from the memory of a real one. Nor has anything a place of its own,
// since some are faster for minutes: those of the tools take turns with all regions, round by
// round, and the store's requests with all of its stores.
namespace terrace {
namespace {

constexpr int kDepthMax = 64;
constexpr std::size_t kBlockMax = 8 * kMiB;
constexpr double kScreeningSeconds = 0.25;
constexpr std::size_t kFinalists = 3;  // of each tool
constexpr std::size_t kTools = 2;      // that are measured in the same rounds
// Of the store: memory that is used again while it is in the caches, as fio's is, and more than
// they hold, as a step's is.
constexpr IoShape kStoreShapes[] = {{512 * kKiB, 16}, {512 * kKiB, 8}, {512 * kKiB, 32}};
constexpr IoShape kSmallStoreShapes[] = {{512 * kKiB, 4}, {512 * kKiB, 2}};
constexpr IoShape kWideStoreShape = {64 * kMiB, 4};

std::vector<IoShape> shapes_to_try(bool small, bool wide) {
  if (small) return {{kMiB, 4}, {512 * kKiB, 4}};
  if (wide) return {{256 * kKiB, 16}, {kMiB, 8}, {kMiB, 32}, {4 * kMiB, 8}, {4 * kMiB, 32}};
  std::vector<IoShape> shapes;
  for (std::size_t block = 128 * kKiB; block <= kBlockMax; block *= 2) {
    for (int depth = 1; depth <= kDepthMax; depth *= 2) shapes.push_back({block, depth});
  }
  return shapes;
}

std::span<const IoShape> store_shapes_of(const BenchOptions& options) {
  return options.small ? std::span<const IoShape>(kSmallStoreShapes) : kStoreShapes;
}

IoShape wide_shape_of(const BenchOptions& options) {
  return options.small ? kSmallStoreShapes[0] : kWideStoreShape;
}

std::size_t regions_of(const BenchOptions& options) {
  return kTools * (kFinalists + store_shapes_of(options).size());
}

// Of a region, and of a store, on each drive.
std::size_t region_bytes_of(const BenchOptions& options) {
  const std::size_t usual = options.small ? 32 * kMiB : kGiB;
  return round_up(options.bytes == 0 ? usual : options.bytes, 4 * kBlockMax);
}

double screening_seconds(const BenchOptions& options) {
  return std::min(kScreeningSeconds, options.seconds);
}

// Of all drives together: the regions, the stores without checksums and with, and the wide one,
// which has two requests at the least.
std::uint64_t space_of(const BenchOptions& options) {
  const std::uint64_t each = region_bytes_of(options) * bench_directories(options).size();
  const std::uint64_t stores = 2 * store_shapes_of(options).size();
  const std::uint64_t wide = std::max<std::uint64_t>(each, 2 * wide_shape_of(options).block_bytes);
  return (regions_of(options) + stores) * each + wide;
}

// That a mix of directions is measured for: every shape once by each tool, and the rounds.
double seconds_of_mix(const BenchOptions& options, bool has_fio) {
  const std::size_t tools = has_fio ? kTools : 1;
  const std::size_t shapes = shapes_to_try(options.small, false).size();
  const std::size_t wide_shapes = shapes_to_try(options.small, true).size();
  const std::size_t tries = tools * shapes + wide_shapes;
  const std::size_t in_a_round =
      (2 + tools) * store_shapes_of(options).size() +  // two kinds of stores
      tools * std::min(kFinalists, shapes) + std::min(kFinalists, wide_shapes) + 1;
  return static_cast<double>(tries) * screening_seconds(options) +
         static_cast<double>(in_a_round) * options.repetitions * options.seconds;
}

// What it costs the drives, told before it does. Of a mix half is written.
std::string cost_text(const BenchOptions& options, bool has_fio) {
  const double seconds = 1.5 * seconds_of_mix(options, has_fio);
  return fmt::format(
      "bench io: takes {} of {} and writes that once, then writes for about {:.1f} s: {} for each "
      "GB/s that is written; --small, --seconds and --repetitions make it less",
      format_size(space_of(options)), fmt::join(bench_directories(options), ", "), seconds,
      format_size(static_cast<std::size_t>(seconds * 1e9)));
}

using Runner = std::function<IoRate(const BareDrives::Run& run)>;

// Something that is measured in rounds, with the samples of both its figures.
struct Contestant {
  std::string name;
  std::function<IoRate(std::size_t round)> run;
  Samples rate;
  Samples cpu;
};
using Contestants = std::vector<Contestant>;

// The shapes that were fastest in one try each, the fastest first.
std::vector<IoShape> finalists_of(const Runner& run, IoMix mix, const std::vector<IoShape>& shapes,
                                  std::size_t regions, double seconds) {
  struct Tried {
    IoShape shape;
    double gb_per_s = 0;
  };
  std::vector<Tried> tried;
  for (const IoShape& shape : shapes) {
    const IoRate rate =
        run({.mix = mix, .shape = shape, .region = tried.size() % regions, .seconds = seconds});
    tried.push_back({shape, rate.gb_per_s});
  }
  std::stable_sort(tried.begin(), tried.end(),
                   [](const Tried& a, const Tried& b) { return a.gb_per_s > b.gb_per_s; });
  std::vector<IoShape> best;
  for (std::size_t i = 0; i < std::min(kFinalists, tried.size()); ++i) {
    best.push_back(tried[i].shape);
  }
  return best;
}

const Contestant& best_of(const Contestants& contestants) {
  return *std::max_element(
      contestants.begin(), contestants.end(),
      [](const Contestant& a, const Contestant& b) { return a.rate.median() < b.rate.median(); });
}

// All of them, in the same rounds: the first of each group, the second of each, and so on.
void measure(const std::vector<Contestants*>& groups, int rounds) {
  std::vector<Contestant*> all;
  std::size_t most = 0;
  for (const Contestants* group : groups) most = std::max(most, group->size());
  for (std::size_t i = 0; i < most; ++i) {
    for (Contestants* group : groups) {
      if (i < group->size()) all.push_back(&(*group)[i]);
    }
  }
  std::vector<Measurement> measurements;
  for (Contestant* contestant : all) {
    measurements.emplace_back([contestant, round = std::size_t{0}]() mutable {
      const IoRate rate = contestant->run(round++);
      contestant->cpu.add(rate.cpu_ms_per_gb);
      return rate.gb_per_s;
    });
  }
  const std::vector<Samples> rates = interleave(measurements, rounds);
  for (std::size_t i = 0; i < all.size(); ++i) all[i]->rate = rates[i];
}

BenchResult rate_result(const std::string& name, const Contestants& stores,
                        const Contestants& limits) {
  const Contestant& limit = best_of(limits);
  BenchResult result{
      .name = name, .value = best_of(stores).rate, .limit = limit.rate, .limit_is = limit.name};
  for (const Contestants* group : {&stores, &limits}) {
    for (const Contestant& one : *group) {
      result.details.push_back({one.name, fmt::format("{:.3f} GB/s, {:.2f} ms/GB",
                                                      one.rate.median(), one.cpu.median())});
    }
  }
  result.details.push_back({"fastest", best_of(stores).name});
  result.details.push_back(
      {"value / limit, median of the rounds",
       fmt::format("{:.3f}", ratios_of_rounds(result.value, result.limit).median())});
  return result;
}

// The one that needs the least of the processors.
const Contestant& cheapest_of(const Contestants& contestants) {
  const auto cost = [](const Contestant& one) {
    // fio counts whole milliseconds: of a run so short that it has none, it does not tell.
    const double cpu = one.cpu.median();
    return cpu > 0 ? cpu : std::numeric_limits<double>::infinity();
  };
  return *std::ranges::min_element(contestants, {}, cost);
}

// The cheapest of either: with few requests in flight the processors' time is that of waking up,
// which is luck.
BenchResult cpu_result(const std::string& name, const Contestants& stores,
                       const Contestants& tools) {
  const Contestant& store = cheapest_of(stores);
  const Contestant& limit = cheapest_of(tools);
  return {.name = name,
          .unit = BenchUnit::kMillisecondsPerGigabyte,
          .value = store.cpu,
          .limit = limit.cpu,
          .limit_is = limit.name,
          .details = {{"cheapest", store.name}}};
}

// Round by round. Where the noise is larger than the difference, a ratio is still made of it.
Samples difference(const Samples& more, const Samples& less) {
  constexpr double kLeast = 1e-3;
  Samples result;
  for (std::size_t i = 0; i < more.values().size(); ++i) {
    result.add(std::max(kLeast, more.values()[i] - less.values()[i]));
  }
  return result;
}

BenchResult checksum_result(const std::string& name, const Contestant& checked,
                            const Contestant& unchecked, const Contestant& alone) {
  return {.name = name,
          .unit = BenchUnit::kMillisecondsPerGigabyte,
          .value = difference(checked.cpu, unchecked.cpu),
          .limit = alone.cpu,
          .limit_is = alone.name};
}

// Checksums of requests, one after another, of memory that is used again and again.
IoRate take_checksums(std::span<const std::byte> memory, std::size_t request_bytes,
                      double seconds) {
  const UsageClock usage;
  std::uint64_t bytes = 0;
  std::uint64_t sum = 0;
  do {
    const std::size_t block = std::min(request_bytes, memory.size());
    sum ^= hash_bytes(memory.subspan(bytes % (memory.size() / block * block), block));
    bytes += block;
  } while (usage.wall_seconds() < seconds);
  TERRACE_CHECK_NE(sum, bytes);  // it was computed
  const double gigabytes = static_cast<double>(bytes) * 1e-9;
  return {.gb_per_s = gigabytes / usage.wall_seconds(),
          .cpu_ms_per_gb = usage.cpu_seconds() * 1e3 / gigabytes};
}

class IoBench {
 public:
  // `fio`: its version, where it is installed. Throws as BareDrives, FioPeer and stores do.
  IoBench(const BenchOptions& options, const std::optional<std::string>& fio, Log& log);

  std::vector<BenchResult> run();

 private:
  // That take turns with requests of some shapes, which have the same size.
  using Stores = std::vector<std::unique_ptr<StoreLoad>>;

  void try_fio();
  std::unique_ptr<StoreLoad> make_store(bool checksums, std::span<const IoShape> requests);
  std::vector<IoShape> finalists(const std::string& tool, const Runner& run, IoMix mix,
                                 bool wide) const;
  // The first of them begins in region `first`, the next in the one behind it.
  Contestants contestants(const std::string& tool, const Runner& run, IoMix mix,
                          std::span<const IoShape> shapes, std::size_t first) const;
  Contestants contestants(const Stores& stores, std::span<const IoShape> requests, IoMix mix) const;
  Contestant checksums_alone() const;
  std::vector<BenchResult> run_mix(IoMix mix);
  std::string description() const;

  const BenchOptions options_;
  Log& log_;
  const std::vector<std::string> directories_;
  const std::size_t bytes_;  // of a region, and of a store, on each drive
  const std::span<const IoShape> store_shapes_;
  const std::size_t regions_;
  BareDrives drives_;
  std::optional<std::string> fio_version_;
  FioPeer fio_;
  const IoShape wide_shape_;
  Stores checked_, unchecked_, wide_;
};

IoBench::IoBench(const BenchOptions& options, const std::optional<std::string>& fio, Log& log)
    : options_(options),
      log_(log),
      directories_(bench_directories(options)),
      bytes_(region_bytes_of(options)),
      store_shapes_(store_shapes_of(options)),
      regions_(regions_of(options)),
      drives_({.directories = directories_,
               .region_bytes = bytes_,
               .regions = regions_,
               .block_bytes_max = options.small ? kMiB : kBlockMax,
               .depth_max = options.small ? 8 : kDepthMax},
              log),
      fio_version_(fio),
      fio_({.files = drives_.files(), .way = drives_.way(), .direct = drives_.direct()}),
      wide_shape_(wide_shape_of(options)) {
  if (!drives_.remark().empty()) log.info("bench io: " + drives_.remark());
  try_fio();
  drives_.fill();
  wide_.push_back(make_store(true, std::span(&wide_shape_, 1)));
  for (std::size_t i = 0; i < store_shapes_.size(); ++i) {
    checked_.push_back(make_store(true, store_shapes_));
    unchecked_.push_back(make_store(false, store_shapes_));
  }
}

// What it cannot do is told before anything is written.
void IoBench::try_fio() {
  if (!fio_version_) {
    log_.info("bench io: fio is not installed; the limit is a bare loop");
    return;
  }
  constexpr double kSeconds = 0.01;
  fio_.run(IoMix::kRead, shapes_to_try(options_.small, false).back(), drives_.range(0), kSeconds);
  if (drives_.way() == IoWay::kThreads) *fio_version_ += " with libaio";
}

std::unique_ptr<StoreLoad> IoBench::make_store(bool checksums, std::span<const IoShape> requests) {
  StoreLoad::Options load;
  for (const std::string& directory : directories_) {
    load.store.directories.push_back({.path = directory, .budget_bytes = std::nullopt});
  }
  load.store.checksums = checksums;
  load.store.named_files = false;
  load.total_bytes = bytes_ * directories_.size();
  load.extent_bytes = requests.front().block_bytes;
  load.requests = std::ranges::max(requests, {}, &IoShape::depth).depth;
  return std::make_unique<StoreLoad>(load, log_);
}

Contestants IoBench::contestants(const Stores& stores, std::span<const IoShape> requests,
                                 IoMix mix) const {
  Contestants contestants;
  for (const IoShape& shape : requests) {
    const StoreLoad::Run one = {.mix = mix, .seconds = options_.seconds, .requests = shape.depth};
    const auto run = [&stores, one, first = contestants.size()](std::size_t round) {
      return stores[(first + round) % stores.size()]->run(one);
    };
    const int depth = std::min(shape.depth, stores.front()->requests());
    contestants.push_back({.name = "store, " + to_text(IoShape{shape.block_bytes, depth}),
                           .run = run,
                           .rate = {},
                           .cpu = {}});
  }
  return contestants;
}

Contestants IoBench::contestants(const std::string& tool, const Runner& run, IoMix mix,
                                 std::span<const IoShape> shapes, std::size_t first) const {
  Contestants contestants;
  for (const IoShape& shape : shapes) {
    BareDrives::Run one = {.mix = mix, .shape = shape, .region = 0, .seconds = options_.seconds};
    const auto run_one = [=, this, begin = first + contestants.size()](std::size_t round) mutable {
      one.region = (begin + round) % regions_;
      return run(one);
    };
    contestants.push_back({.name = fmt::format("{}, {}", tool, to_text(shape)),
                           .run = run_one,
                           .rate = {},
                           .cpu = {}});
  }
  return contestants;
}

Contestant IoBench::checksums_alone() const {
  // What requests of the first shape have in flight, and what the store has the checksums of.
  const IoShape& shape = store_shapes_.front();
  const std::size_t in_flight = shape.block_bytes * static_cast<std::size_t>(shape.depth);
  return {.name = fmt::format("xxh3 of {} of memory, 1 thread", format_size(in_flight)),
          .run =
              [this, in_flight](std::size_t /*round*/) {
                return take_checksums(drives_.memory().first(in_flight),
                                      store_shapes_.front().block_bytes,
                                      std::min(kScreeningSeconds, options_.seconds));
              },
          .rate = {},
          .cpu = {}};
}

std::vector<IoShape> IoBench::finalists(const std::string& tool, const Runner& run, IoMix mix,
                                        bool wide) const {
  log_.info(fmt::format("bench io: {}: trying shapes with {}", name_of(mix), tool));
  return finalists_of(run, mix, shapes_to_try(options_.small, wide), regions_,
                      screening_seconds(options_));
}

std::string IoBench::description() const {
  std::string text;
  const BlockStore& store = wide_.front()->store();
  for (const StorePath& path : store.paths()) {
    if (!text.empty()) text += "; ";
    text += fmt::format("{}{}{}, blocks of {}, {} in flight", path.engine,
                        path.direct_io ? ", O_DIRECT" : ", page cache",
                        path.registered_buffers ? ", registered buffers" : "",
                        format_size(store.block_bytes()), path.depth);
  }
  return text;
}

std::vector<BenchResult> IoBench::run_mix(IoMix mix) {
  const Runner fio = [this](const BareDrives::Run& run) {
    return fio_.run(run.mix, run.shape, drives_.range(run.region), run.seconds);
  };
  const Runner bare = [this](const BareDrives::Run& run) { return drives_.run(run); };
  const Runner bare_wide = [this](BareDrives::Run run) {
    run.wide = true;
    return drives_.run(run);
  };
  const std::string loop = drives_.way() == IoWay::kThreads ? "bare threads" : "bare loop";
  const std::string wide_loop =
      fmt::format("{} over {}", loop, format_size(drives_.memory().size()));
  Contestants fios;
  if (fio_version_) {
    fios = contestants(*fio_version_, fio, mix, finalists(*fio_version_, fio, mix, false), 0);
  }
  Contestants loops = contestants(loop, bare, mix, finalists(loop, bare, mix, false), kFinalists);
  // Requests of the store's shapes tell who needs less of the processors.
  Contestants alike = contestants(loop, bare, mix, store_shapes_, kTools * kFinalists);
  if (fio_version_) {
    const std::size_t first = kTools * kFinalists + alike.size();
    for (Contestant& one : contestants(*fio_version_, fio, mix, store_shapes_, first)) {
      alike.push_back(std::move(one));
    }
  }
  Contestants checked = contestants(checked_, store_shapes_, mix);
  Contestants unchecked = contestants(unchecked_, store_shapes_, mix);
  Contestants wide = contestants(wide_, std::span(&wide_shape_, 1), mix);
  Contestants wide_loops =
      contestants(wide_loop, bare_wide, mix, finalists(wide_loop, bare_wide, mix, true), 0);
  Contestants sums = {checksums_alone()};
  log_.info(fmt::format("bench io: {}: {} rounds", name_of(mix), options_.repetitions));
  measure({&checked, &unchecked, &sums, &fios, &loops, &alike}, options_.repetitions);
  measure({&wide, &wide_loops}, options_.repetitions);

  Contestants limits = fios;
  limits.insert(limits.end(), loops.begin(), loops.end());
  limits.insert(limits.end(), alike.begin(), alike.end());
  const std::string name = "store_" + name_of(mix);
  std::vector<BenchResult> results = {
      rate_result(name, checked, limits),
      rate_result(name + "_unchecked", unchecked, limits),
      rate_result(name + "_wide", wide, wide_loops),
      cpu_result(name + "_cpu", checked, alike),
      cpu_result(name + "_unchecked_cpu", unchecked, alike),
      checksum_result(name + "_checksums", checked[0], unchecked[0], sums[0])};
  results[0].details.push_back({"store", description()});
  return results;
}

std::vector<BenchResult> IoBench::run() {
  std::vector<BenchResult> results;
  for (const IoMix mix : {IoMix::kRead, IoMix::kWrite, IoMix::kMixed}) {
    for (BenchResult& result : run_mix(mix)) results.push_back(std::move(result));
  }
  return results;
}

}  // namespace

std::vector<BenchResult> bench_io(const BenchOptions& options, Log& log) {
  const std::optional<std::string> fio = FioPeer::find();
  check_drives(options, space_of(options), log);
  log.info(cost_text(options, fio.has_value()));
  return IoBench(options, fio, log).run();
}

}  // namespace terrace
