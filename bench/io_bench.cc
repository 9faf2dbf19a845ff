#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>

#include "base/bytes.h"
#include "base/check.h"
#include "base/hash.h"
#include "bench/bare_drives.h"
#include "bench/bench_list.h"
#include "bench/bench_only.h"
#include "bench/drive_check.h"
#include "bench/fio_peer.h"
#include "bench/io_contest.h"
#include "bench/io_plan.h"
#include "bench/store_load.h"
#include "bench/usage_clock.h"

// There are two steps for each mix of directions. First the bare loop and fio try every shape of
// I/O once. Then the best few shapes of each are measured again, in rounds with the store, which is
// asked for requests of some shapes. The best median of the store is compared with the best of
// theirs, and its processor time with the least that they need for requests of these shapes.
//
// No two measurements in a row use the same place of the drive, because data that was used a moment
// ago comes faster, from the host of a virtual drive or from the memory of a real one. Nor does any
// measurement keep a place of its own, because some places are faster for minutes: the tools take
// turns with all regions, round by round, and the store's requests take turns with all of its
// stores.
namespace terrace {
namespace {

constexpr IoMix kIoMixes[] = {IoMix::kRead, IoMix::kWrite, IoMix::kMixed};

// Returns the names without the wide requests, which are measured by themselves.
std::vector<std::string> names_of_mix(IoMix mix) {
  std::vector<std::string> names;
  for (const char* const what : {"", "_unchecked", "_cpu", "_unchecked_cpu", "_checksums"}) {
    names.push_back("store_" + name_of(mix) + what);
  }
  return names;
}

std::string wide_name(IoMix mix) { return "store_" + name_of(mix) + "_wide"; }

using Runner = std::function<IoRate(const BareDrives::Run& run)>;

// Takes the checksums of requests, one after another, of memory that is used again and again.
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
  // `fio`: its version, where it is installed. Throws as BareDrives, FioPeer and stores do, and
  // TimeIsUp.
  IoBench(const BenchOptions& options, const std::optional<std::string>& fio, BenchRecord& record,
          Log& log);

  void run();

 private:
  // Stores that take turns with requests of some shapes, which have the same size.
  using Stores = std::vector<std::unique_ptr<StoreLoad>>;

  // The measurements of one mix of directions, round by round.
  struct MixContest {
    IoMix mix;
    Contestants limits, checked, unchecked, sums;
    std::vector<BenchResult::ShapeRate> tried;  // before the rounds
    std::optional<IoContest> contest;           // refers to the above
  };
  struct WideContest {
    IoMix mix;
    Contestants stores, loops;
    std::vector<BenchResult::ShapeRate> tried;
    std::optional<IoContest> contest;
  };
  using Part = std::function<void(const Rounds& rounds)>;

  void try_fio();
  // Makes the stores of all mixes, when the first mix begins.
  void make_stores();
  // Divides the time that is left among the parts that have not begun.
  void begin_part();
  std::unique_ptr<StoreLoad> make_store(bool checksums, std::span<const IoShape> requests);
  std::vector<IoShape> finalists(const std::string& tool, const Runner& run, IoMix mix, bool wide);
  std::vector<IoShape> best_shapes(const std::string& tool, const Runner& run, IoMix mix,
                                   bool wide);
  // Returns contestants, the first of which begins in region `first`, the next in the one after it.
  Contestants contestants(const std::string& tool, const Runner& run, IoMix mix,
                          std::span<const IoShape> shapes, std::size_t first) const;
  Contestants contestants(const Stores& stores, std::span<const IoShape> requests, IoMix mix) const;
  // Returns the contestants of the bare loop and of fio, each with the shapes of the store besides
  // its finalists.
  Contestants tools(IoMix mix);
  Contestants wide_loops(IoMix mix);
  Contestant checksums_alone() const;
  // Returns a part for each mix, and one for its wide requests, which have rounds of their own.
  std::vector<Part> parts();
  Part part_of_mix(IoMix mix);
  Part part_of_wide(IoMix mix);
  void put_mix(const MixContest& of);
  std::string loop_name() const;
  std::string description() const;

  const BenchOptions options_;
  BenchRecord& record_;
  Log& log_;
  const std::vector<std::string> directories_;
  const std::size_t bytes_;  // of a region on each drive
  std::size_t store_bytes_;  // of a store on each drive
  const std::span<const IoShape> store_shapes_;
  std::size_t regions_;  // that are written
  BareDrives drives_;
  std::optional<std::string> fio_version_;
  FioPeer fio_;
  const IoShape wide_shape_;
  Stores checked_, unchecked_, wide_;
  double parts_to_begin_ = 0;
  double seconds_ = 0;                         // of a measurement of the part that begins
  std::vector<BenchResult::ShapeRate> tried_;  // since they were last taken
};

IoBench::IoBench(const BenchOptions& options, const std::optional<std::string>& fio,
                 BenchRecord& record, Log& log)
    : options_(options),
      record_(record),
      log_(log),
      directories_(bench_directories(options)),
      bytes_(io_region_bytes(options)),
      store_bytes_(bytes_),
      store_shapes_(io_store_shapes(options)),
      regions_(io_regions(options)),
      drives_({.directories = directories_,
               .region_bytes = bytes_,
               .regions = regions_,
               .block_bytes_max = io_block_max(options),
               .depth_max = options.small ? 8 : kIoDepthMax},
              log),
      fio_version_(fio),
      fio_({.files = drives_.files(), .way = drives_.way(), .direct = drives_.direct()}),
      wide_shape_(io_wide_shape(options)) {
  if (!drives_.remark().empty()) log.info("bench io: " + drives_.remark());
  try_fio();
  constexpr double kFillShare = 0.3;  // of the time
  const UsageClock clock;
  regions_ = drives_.fill(record.end().part(kFillShare));
  if (regions_ == 0) throw TimeIsUp();
  // The drive may be slower than the quick measurement told.
  if (record.end().is_set()) {
    const double bytes_per_s = static_cast<double>(regions_ * bytes_) / clock.wall_seconds();
    store_bytes_ = io_store_bytes(options, bytes_per_s, record.end());
  }
}

void IoBench::make_stores() {
  if (!checked_.empty()) return;
  for (std::size_t i = 0; i < store_shapes_.size(); ++i) {
    checked_.push_back(make_store(true, store_shapes_));
    unchecked_.push_back(make_store(false, store_shapes_));
  }
}

void IoBench::begin_part() {
  seconds_ = io_measurement_seconds(options_, fio_version_.has_value(),
                                    record_.end().part(1 / parts_to_begin_));
  --parts_to_begin_;
}

// Tries fio, so that anything that it cannot do is told before anything is written.
void IoBench::try_fio() {
  if (!fio_version_) {
    log_.info("bench io: fio is not installed; the limit is a bare loop");
    return;
  }
  constexpr double kSeconds = 0.01;
  fio_.run(IoMix::kRead, io_shapes_to_try(options_, false).back(), drives_.range(0), kSeconds);
  if (drives_.way() == IoWay::kThreads) *fio_version_ += " with libaio";
}

std::unique_ptr<StoreLoad> IoBench::make_store(bool checksums, std::span<const IoShape> requests) {
  record_.check_time();
  StoreLoad::Options load;
  for (const std::string& directory : directories_) {
    load.store.directories.push_back({.path = directory, .budget_bytes = std::nullopt});
  }
  load.store.checksums = checksums;
  load.store.named_files = false;
  load.total_bytes = store_bytes_ * directories_.size();
  load.extent_bytes = requests.front().block_bytes;
  load.requests = std::ranges::max(requests, {}, &IoShape::depth).depth;
  return std::make_unique<StoreLoad>(load, log_);
}

Contestants IoBench::contestants(const Stores& stores, std::span<const IoShape> requests,
                                 IoMix mix) const {
  Contestants contestants;
  for (const IoShape& shape : requests) {
    const StoreLoad::Run one = {.mix = mix, .seconds = seconds_, .requests = shape.depth};
    const auto run = [&stores, one, first = contestants.size()](std::size_t round) {
      return stores[(first + round) % stores.size()]->run(one);
    };
    const int depth = std::min(shape.depth, stores.front()->requests());
    const IoShape used = {shape.block_bytes, depth};
    contestants.push_back(
        {.name = "store, " + to_text(used), .tool = "store", .shape = used, .run = run});
  }
  return contestants;
}

Contestants IoBench::contestants(const std::string& tool, const Runner& run, IoMix mix,
                                 std::span<const IoShape> shapes, std::size_t first) const {
  Contestants contestants;
  for (const IoShape& shape : shapes) {
    BareDrives::Run one = {.mix = mix, .shape = shape, .region = 0, .seconds = seconds_};
    const auto run_one = [=, this, begin = first + contestants.size()](std::size_t round) mutable {
      one.region = (begin + round) % regions_;
      return run(one);
    };
    contestants.push_back({.name = fmt::format("{}, {}", tool, to_text(shape)),
                           .tool = tool,
                           .shape = shape,
                           .run = run_one});
  }
  return contestants;
}

Contestant IoBench::checksums_alone() const {
  // The bytes that requests of the first shape have in flight, whose checksums the store takes.
  const IoShape& shape = store_shapes_.front();
  const std::size_t in_flight = shape.block_bytes * static_cast<std::size_t>(shape.depth);
  return {.name = fmt::format("xxh3 of {} of memory, 1 thread", format_size(in_flight)),
          .tool = "xxh3",
          .shape = shape,
          .run = [this, in_flight](std::size_t /*round*/) {
            return take_checksums(drives_.memory().first(in_flight),
                                  store_shapes_.front().block_bytes,
                                  std::min(io_screening_seconds(options_), seconds_));
          }};
}

// Returns the shapes that were fastest in one try each, the fastest first.
std::vector<IoShape> IoBench::best_shapes(const std::string& tool, const Runner& run, IoMix mix,
                                          bool wide) {
  struct Tried {
    IoShape shape;
    double gb_per_s = 0;
  };
  std::vector<Tried> tried;
  for (const IoShape& shape : io_shapes_to_try(options_, wide)) {
    record_.check_time();
    const IoRate rate = run({.mix = mix,
                             .shape = shape,
                             .region = tried.size() % regions_,
                             .seconds = io_screening_seconds(options_)});
    tried.push_back({shape, rate.gb_per_s});
    tried_.push_back({tool, shape.block_bytes, shape.depth, rate.gb_per_s, 0});
  }
  std::stable_sort(tried.begin(), tried.end(),
                   [](const Tried& a, const Tried& b) { return a.gb_per_s > b.gb_per_s; });
  std::vector<IoShape> best;
  for (std::size_t i = 0; i < io_finalists(options_, wide); ++i) best.push_back(tried[i].shape);
  return best;
}

std::vector<IoShape> IoBench::finalists(const std::string& tool, const Runner& run, IoMix mix,
                                        bool wide) {
  std::vector<IoShape> shapes = io_shapes_to_try(options_, wide);
  if (options_.grid) {
    log_.info(fmt::format("bench io: {}: trying block sizes and queue depths with {}", name_of(mix),
                          tool));
    shapes = best_shapes(tool, run, mix, wide);
  }
  if (wide) return shapes;
  for (const IoShape& shape : store_shapes_) {
    if (std::ranges::count(shapes, shape) == 0) shapes.push_back(shape);
  }
  return shapes;
}

std::string IoBench::loop_name() const {
  return drives_.way() == IoWay::kThreads ? "bare threads" : "bare loop";
}

std::string IoBench::description() const {
  std::string text;
  const BlockStore& store = checked_.front()->store();
  for (const StorePath& path : store.paths()) {
    if (!text.empty()) text += "; ";
    text += fmt::format("{}{}{}, blocks of {}, {} in flight", path.engine,
                        path.direct_io ? ", O_DIRECT" : ", page cache",
                        path.registered_buffers ? ", registered buffers" : "",
                        format_size(store.block_bytes()), path.depth);
  }
  return text;
}

Contestants IoBench::tools(IoMix mix) {
  const Runner fio = [this](const BareDrives::Run& run) {
    return fio_.run(run.mix, run.shape, drives_.range(run.region), run.seconds);
  };
  const Runner bare = [this](const BareDrives::Run& run) { return drives_.run(run); };
  const std::string loop = loop_name();
  Contestants tools = contestants(loop, bare, mix, finalists(loop, bare, mix, false), 0);
  if (!fio_version_) return tools;
  const std::vector<IoShape> shapes = finalists(*fio_version_, fio, mix, false);
  for (Contestant& one : contestants(*fio_version_, fio, mix, shapes, tools.size())) {
    tools.push_back(std::move(one));
  }
  return tools;
}

Contestants IoBench::wide_loops(IoMix mix) {
  const Runner bare_wide = [this](BareDrives::Run run) {
    run.wide = true;
    return drives_.run(run);
  };
  const std::string loop =
      fmt::format("{} over {}", loop_name(), format_size(drives_.memory().size()));
  return contestants(loop, bare_wide, mix, finalists(loop, bare_wide, mix, true), 0);
}

void IoBench::put_mix(const MixContest& of) {
  const std::string name = "store_" + name_of(of.mix);
  BenchResult result = io_rate_result(name, of.checked, of.limits);
  add_io_details(result, of.limits);
  result.notes.push_back({"store", description()});
  result.matrix = of.tried;
  add_matrix(result, of.limits);
  add_matrix(result, of.checked);
  record_.put(std::move(result));
  result = io_rate_result(name + "_unchecked", of.unchecked, of.limits);
  add_matrix(result, of.unchecked);
  record_.put(std::move(result));
  record_.put(io_cpu_result(name + "_cpu", of.checked, of.limits, store_shapes_));
  record_.put(io_cpu_result(name + "_unchecked_cpu", of.unchecked, of.limits, store_shapes_));
  record_.put(io_checksum_result(name + "_checksums", of.checked[0], of.unchecked[0], of.sums[0]));
}

IoBench::Part IoBench::part_of_mix(IoMix mix) {
  const auto of = std::make_shared<MixContest>();
  of->mix = mix;
  return [this, of](const Rounds& rounds) {
    if (!of->contest) {
      make_stores();
      begin_part();
      log_.info(fmt::format("bench io: {}: {} rounds", name_of(of->mix), options_.repetitions));
      of->limits = tools(of->mix);
      of->tried = std::exchange(tried_, {});
      of->checked = contestants(checked_, store_shapes_, of->mix);
      of->unchecked = contestants(unchecked_, store_shapes_, of->mix);
      of->sums = {checksums_alone()};
      of->contest.emplace(
          std::vector<Contestants*>{&of->checked, &of->unchecked, &of->sums, &of->limits});
    }
    of->contest->take(rounds, [&] { put_mix(*of); });
  };
}

IoBench::Part IoBench::part_of_wide(IoMix mix) {
  const auto of = std::make_shared<WideContest>();
  of->mix = mix;
  return [this, of](const Rounds& rounds) {
    if (!of->contest) {
      if (wide_.empty()) wide_.push_back(make_store(true, std::span(&wide_shape_, 1)));
      begin_part();
      of->stores = contestants(wide_, std::span(&wide_shape_, 1), of->mix);
      of->loops = wide_loops(of->mix);
      of->tried = std::exchange(tried_, {});
      of->contest.emplace(std::vector<Contestants*>{&of->stores, &of->loops});
    }
    of->contest->take(rounds, [&] {
      BenchResult result = io_rate_result(wide_name(of->mix), of->stores, of->loops);
      add_io_details(result, of->loops);
      result.matrix = of->tried;
      add_matrix(result, of->loops);
      add_matrix(result, of->stores);
      record_.put(std::move(result));
    });
  };
}

std::vector<IoBench::Part> IoBench::parts() {
  std::vector<Part> parts;
  for (const IoMix mix : kIoMixes) {
    const std::vector<std::string> names = names_of_mix(mix);
    if (any_is_wanted(options_, names)) parts.push_back(part_of_mix(mix));
    if (is_wanted(options_, wide_name(mix))) parts.push_back(part_of_wide(mix));
  }
  return parts;
}

void IoBench::run() {
  const std::vector<Part> all = parts();
  parts_to_begin_ = static_cast<double>(all.size());
  deal_rounds(all.size(), options_.repetitions, record_,
              [&](std::size_t part, const Rounds& rounds) { all[part](rounds); });
}

}  // namespace

std::vector<std::string> names_of_io(const BenchOptions& /*options*/) {
  std::vector<std::string> names;
  for (const IoMix mix : kIoMixes) {
    for (std::string& name : names_of_mix(mix)) names.push_back(std::move(name));
    names.push_back(wide_name(mix));
  }
  return names;
}

void bench_io(const BenchOptions& options, BenchRecord& record, Log& log) {
  record.expect(names_of_io(options));
  const std::optional<std::string> fio = FioPeer::find();
  check_drives(options, io_space(options), log);
  log.info(fmt::format("bench io: uses {} of {} while it runs", format_size(io_space(options)),
                       fmt::join(bench_directories(options), ", ")));
  IoBench(options, fio, record, log).run();
}

}  // namespace terrace
