#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <optional>

#include "base/bytes.h"
#include "base/check.h"
#include "base/hash.h"
#include "runtime/bench/bare_drives.h"
#include "runtime/bench/bench_list.h"
#include "runtime/bench/fio_peer.h"
#include "runtime/bench/store_load.h"
#include "runtime/bench/usage_clock.h"

// Two steps for each mix of directions. First every shape of I/O is tried once by the bare loop and
// by fio. Then the best few of each are measured again, in rounds with the store and its shapes:
// the best median of the store is held against the best of theirs.
namespace terrace {
namespace {

// Several stores are measured, each of so large a part of the working set.
constexpr std::size_t kStoreShare = 3;
constexpr int kDepthMax = 64;
constexpr std::size_t kBlockMax = 8 * kMiB;
constexpr double kScreeningSeconds = 0.25;
constexpr std::size_t kFinalists = 3;
// Of the store: memory that is used again while it is in the caches, as fio's is, and more than
// they hold, as a step's is.
constexpr IoShape kStoreShapes[] = {{512 * kKiB, 16}, {512 * kKiB, 32}, {kMiB, 8}, {4 * kMiB, 4}};
constexpr IoShape kSmallStoreShapes[] = {{512 * kKiB, 4}, {kMiB, 2}};
constexpr IoShape kWideStoreShape = {64 * kMiB, 4};

std::vector<IoShape> shapes_to_try(bool small, bool wide) {
  if (small) return {{kMiB, 4}};
  if (wide) return {{256 * kKiB, 16}, {kMiB, 8}, {kMiB, 32}, {4 * kMiB, 8}, {4 * kMiB, 32}};
  std::vector<IoShape> shapes;
  for (std::size_t block = 128 * kKiB; block <= kBlockMax; block *= 2) {
    for (int depth = 1; depth <= kDepthMax; depth *= 2) shapes.push_back({block, depth});
  }
  return shapes;
}

using Runner = std::function<IoRate(IoMix mix, const IoShape& shape, double seconds)>;

// Something that is measured in rounds, with the samples of both its figures.
struct Contestant {
  std::string name;
  std::function<IoRate()> run;
  Samples rate;
  Samples cpu;
};
using Contestants = std::vector<Contestant>;

// The shapes that were fastest in one try each.
std::vector<IoShape> finalists_of(const Runner& run, IoMix mix, const std::vector<IoShape>& shapes,
                                  double seconds) {
  if (shapes.size() == 1) return shapes;
  struct Tried {
    IoShape shape;
    double gb_per_s = 0;
  };
  std::vector<Tried> tried;
  for (const IoShape& shape : shapes) tried.push_back({shape, run(mix, shape, seconds).gb_per_s});
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

// All of them, in the same rounds.
void measure(const std::vector<Contestants*>& groups, int rounds) {
  std::vector<Contestant*> all;
  for (Contestants* group : groups) {
    for (Contestant& contestant : *group) all.push_back(&contestant);
  }
  std::vector<Measurement> measurements;
  for (Contestant* contestant : all) {
    measurements.emplace_back([contestant] {
      const IoRate rate = contestant->run();
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
  return result;
}

BenchResult cpu_result(const std::string& name, const Contestant& store, const Contestant& limit) {
  return {.name = name,
          .unit = BenchUnit::kMillisecondsPerGigabyte,
          .value = store.cpu,
          .limit = limit.cpu,
          .limit_is = limit.name};
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

// Checksums of requests, one after another, of memory that no cache holds.
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
  IoBench(const BenchOptions& options, Log& log);

  std::vector<BenchResult> run();

 private:
  // Stores whose requests have a shape.
  struct ShapedStores {
    IoShape shape;
    std::unique_ptr<StoreLoad> checked, unchecked;
  };

  std::unique_ptr<StoreLoad> make_store(bool checksums, const IoShape& requests);
  std::vector<ShapedStores> make_stores();
  Contestants finalists(const std::string& tool, const Runner& run, IoMix mix, bool wide) const;
  Contestant contestant(StoreLoad& store, const IoShape& requests, IoMix mix) const;
  Contestants shaped_contestants(bool checksums, IoMix mix) const;
  Contestant checksums_alone() const;
  std::vector<BenchResult> run_mix(IoMix mix);
  std::string description() const;

  const BenchOptions options_;
  Log& log_;
  const std::vector<std::string> directories_;
  const std::size_t bytes_;  // of each file
  BareDrives drives_;
  std::optional<std::string> fio_version_;
  FioPeer fio_;
  const IoShape wide_shape_;
  std::vector<ShapedStores> stores_;
  std::unique_ptr<StoreLoad> wide_;
};

std::vector<std::string> directories_of(const BenchOptions& options) {
  return options.nvme.empty() ? std::vector<std::string>{"."} : options.nvme;
}

std::size_t file_bytes_of(const BenchOptions& options) {
  const std::size_t usual = options.small ? 32 * kMiB : 3 * kGiB;
  return round_up(options.bytes == 0 ? usual : options.bytes, 4 * kBlockMax);
}

IoBench::IoBench(const BenchOptions& options, Log& log)
    : options_(options),
      log_(log),
      directories_(directories_of(options)),
      bytes_(file_bytes_of(options)),
      drives_(directories_, bytes_, options.small ? kMiB : kBlockMax, options.small ? 8 : kDepthMax,
              log),
      fio_version_(FioPeer::find()),
      fio_({.files = drives_.files(), .file_bytes = bytes_, .scratch = drives_.scratch()}),
      wide_shape_(options.small ? kSmallStoreShapes[0] : kWideStoreShape),
      stores_(make_stores()),
      wide_(make_store(true, wide_shape_)) {
  if (!fio_version_) log.info("bench io: fio is not installed; the limit is a bare io_uring loop");
}

std::unique_ptr<StoreLoad> IoBench::make_store(bool checksums, const IoShape& requests) {
  StoreLoad::Options load;
  for (const std::string& directory : directories_) {
    load.store.directories.push_back({.path = directory, .budget_bytes = std::nullopt});
  }
  load.store.checksums = checksums;
  load.total_bytes = bytes_ / kStoreShare * directories_.size();
  load.extent_bytes = requests.block_bytes;
  load.requests = requests.depth;
  return std::make_unique<StoreLoad>(load, log_);
}

std::vector<IoBench::ShapedStores> IoBench::make_stores() {
  std::vector<ShapedStores> stores;
  for (const IoShape& shape :
       options_.small ? std::span<const IoShape>(kSmallStoreShapes) : kStoreShapes) {
    stores.push_back({shape, make_store(true, shape), make_store(false, shape)});
  }
  return stores;
}

Contestant IoBench::contestant(StoreLoad& store, const IoShape& requests, IoMix mix) const {
  return {.name = fmt::format("store, {}", to_text(requests)),
          .run = [&store, mix, this] { return store.run(mix, options_.seconds); },
          .rate = {},
          .cpu = {}};
}

Contestants IoBench::shaped_contestants(bool checksums, IoMix mix) const {
  Contestants contestants;
  for (const ShapedStores& stores : stores_) {
    StoreLoad& store = checksums ? *stores.checked : *stores.unchecked;
    contestants.push_back(contestant(store, stores.shape, mix));
  }
  return contestants;
}

Contestant IoBench::checksums_alone() const {
  return {.name = "xxh3 of memory, 1 thread",
          .run =
              [this] {
                return take_checksums(drives_.memory(), stores_.front().shape.block_bytes,
                                      std::min(kScreeningSeconds, options_.seconds));
              },
          .rate = {},
          .cpu = {}};
}

Contestants IoBench::finalists(const std::string& tool, const Runner& run, IoMix mix,
                               bool wide) const {
  log_.info(fmt::format("bench io: {}: trying shapes with {}", name_of(mix), tool));
  const std::vector<IoShape> best = finalists_of(run, mix, shapes_to_try(options_.small, wide),
                                                 std::min(kScreeningSeconds, options_.seconds));
  Contestants contestants;
  for (const IoShape& shape : best) {
    contestants.push_back(
        {.name = fmt::format("{}, {}", tool, to_text(shape)),
         .run = [run, mix, shape, this] { return run(mix, shape, options_.seconds); },
         .rate = {},
         .cpu = {}});
  }
  return contestants;
}

std::string IoBench::description() const {
  std::string text;
  const BlockStore& store = wide_->store();
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
  const Runner fio = [this](IoMix of, const IoShape& shape, double seconds) {
    return fio_.run(of, shape, seconds);
  };
  const Runner bare = [this](IoMix of, const IoShape& shape, double seconds) {
    return drives_.run(of, shape, seconds);
  };
  const Runner bare_wide = [this](IoMix of, const IoShape& shape, double seconds) {
    return drives_.run(of, shape, seconds, true);
  };
  Contestants checked = shaped_contestants(true, mix);
  Contestants unchecked = shaped_contestants(false, mix);
  Contestants wide = {contestant(*wide_, wide_shape_, mix)};
  Contestants fios;
  if (fio_version_) fios = finalists(*fio_version_, fio, mix, false);
  Contestants loops = finalists("bare loop", bare, mix, false);
  Contestants wide_loops = finalists("bare loop over 512 MiB", bare_wide, mix, true);
  Contestants sums = {checksums_alone()};
  log_.info(fmt::format("bench io: {}: {} rounds", name_of(mix), options_.repetitions));
  measure({&checked, &unchecked, &wide, &fios, &loops, &wide_loops, &sums}, options_.repetitions);

  Contestants limits = fios;
  limits.insert(limits.end(), loops.begin(), loops.end());
  // fio's time on the processor where it is there; it is what others will compare with.
  const Contestant& tool = best_of(fios.empty() ? loops : fios);
  const std::string name = "store_" + name_of(mix);
  std::vector<BenchResult> results = {
      rate_result(name, checked, limits),
      rate_result(name + "_unchecked", unchecked, limits),
      rate_result(name + "_wide", wide, wide_loops),
      cpu_result(name + "_cpu", best_of(checked), tool),
      cpu_result(name + "_unchecked_cpu", best_of(unchecked), tool),
      checksum_result(name + "_checksums", checked[0], unchecked[0], sums[0])};
  results[0].details.push_back({"fastest", best_of(checked).name});
  results[1].details.push_back({"fastest", best_of(unchecked).name});
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
  return IoBench(options, log).run();
}

}  // namespace terrace
