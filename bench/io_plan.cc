#include "bench/io_plan.h"

#include <algorithm>
#include <cmath>

#include "base/bytes.h"
#include "bench/bench_list.h"
#include "bench/bench_only.h"
#include "bench/drive_check.h"
#include "bench/fio_peer.h"

namespace terrace {
namespace {

constexpr double kScreeningSeconds = 0.25;
constexpr std::size_t kFinalists = 3;  // of each tool
constexpr IoShape kStoreShapes[] = {{512 * kKiB, 16}, {512 * kKiB, 8}, {512 * kKiB, 32}};
constexpr IoShape kSmallStoreShapes[] = {{512 * kKiB, 4}, {512 * kKiB, 2}};
constexpr IoShape kWideStoreShape = {64 * kMiB, 4};
constexpr IoShape kWithoutGrid = {kMiB, 32};
constexpr double kMixes = 3;
constexpr double kFioStartSeconds = 0.25;  // and its end

// The numbers of measurements of a mix of directions.
struct Measurements {
  double tries = 0;
  double tries_of_fio = 0;
  double in_a_round = 0;
  double in_a_round_of_fio = 0;
};

Measurements measurements_of(const BenchOptions& options, bool has_fio) {
  const auto of = [](std::size_t count) { return static_cast<double>(count); };
  const double fios = has_fio ? 1 : 0;
  const double stores = of(io_store_shapes(options).size());
  const double finalists = of(io_finalists(options, false)) + stores;
  Measurements count;
  if (options.grid) {
    const double shapes = of(io_shapes_to_try(options, false).size());
    count.tries_of_fio = fios * shapes;
    count.tries = (1 + fios) * shapes + of(io_shapes_to_try(options, true).size());
  }
  count.in_a_round_of_fio = fios * finalists;
  // Two kinds of stores, checksums alone, the wide store and its limits.
  count.in_a_round = 2 * stores + 1 + (1 + fios) * finalists + 1 + of(io_finalists(options, true));
  return count;
}

double seconds_of_mix(const BenchOptions& options, bool has_fio) {
  const Measurements count = measurements_of(options, has_fio);
  return count.tries * io_screening_seconds(options) + count.tries_of_fio * kFioStartSeconds +
         options.repetitions *
             (count.in_a_round * options.seconds + count.in_a_round_of_fio * kFioStartSeconds);
}

double seconds_of_grid(const BenchOptions& options, bool has_fio) {
  const Measurements count = measurements_of(options, has_fio);
  return kMixes *
         (count.tries * io_screening_seconds(options) + count.tries_of_fio * kFioStartSeconds);
}

}  // namespace

std::vector<IoShape> io_shapes_to_try(const BenchOptions& options, bool wide) {
  if (options.small) return {{kMiB, 4}, {512 * kKiB, 4}};
  if (!options.grid) return {kWithoutGrid};
  if (wide) return {{256 * kKiB, 16}, {kMiB, 8}, {kMiB, 32}, {4 * kMiB, 8}, {4 * kMiB, 32}};
  std::vector<IoShape> shapes;
  for (std::size_t block = 128 * kKiB; block <= kIoBlockMax; block *= 2) {
    for (int depth = 1; depth <= kIoDepthMax; depth *= 2) shapes.push_back({block, depth});
  }
  return shapes;
}

std::size_t io_finalists(const BenchOptions& options, bool wide) {
  return std::min(kFinalists, io_shapes_to_try(options, wide).size());
}

std::span<const IoShape> io_store_shapes(const BenchOptions& options) {
  return options.small ? std::span<const IoShape>(kSmallStoreShapes) : kStoreShapes;
}

IoShape io_wide_shape(const BenchOptions& options) {
  return options.small ? kSmallStoreShapes[0] : kWideStoreShape;
}

std::size_t io_regions(const BenchOptions& options) {
  return kIoTools * (io_finalists(options, false) + io_store_shapes(options).size());
}

std::size_t io_region_bytes(const BenchOptions& options) {
  const std::size_t usual = options.small ? 32 * kMiB : kGiB;
  return round_up(options.bytes == 0 ? usual : options.bytes, 4 * kIoBlockMax);
}

std::uint64_t io_space(const BenchOptions& options) {
  const std::uint64_t each = io_region_bytes(options) * bench_directories(options).size();
  const std::uint64_t stores = 2 * io_store_shapes(options).size();
  const std::uint64_t wide = std::max<std::uint64_t>(each, 2 * io_wide_shape(options).block_bytes);
  return (io_regions(options) + stores) * each + wide;
}

double io_screening_seconds(const BenchOptions& options) {
  return std::min(kScreeningSeconds, options.seconds);
}

std::size_t io_block_max(const BenchOptions& options) {
  constexpr std::size_t kHurriedBlockMax = 2 * kMiB;
  if (options.small) return kMiB;
  return options.hurried && !options.grid ? kHurriedBlockMax : kIoBlockMax;
}

std::size_t io_store_bytes(const BenchOptions& options, double bytes_per_s, const Deadline& end) {
  constexpr double kShare = 0.15;
  constexpr std::size_t kLeast = 4 * kIoBlockMax;
  const auto stores = 2 * static_cast<double>(io_store_shapes(options).size());
  const double fitting = kShare * std::max(0.0, end.seconds_left()) * bytes_per_s / stores;
  const auto most = static_cast<double>(io_region_bytes(options));
  return std::max(kLeast, static_cast<std::size_t>(std::min(fitting, most)) / kLeast * kLeast);
}

double io_measurement_seconds(const BenchOptions& options, bool has_fio, const Deadline& end) {
  constexpr double kShare = 0.5;
  constexpr double kLeast = 1e-3;
  if (!end.is_set()) return options.seconds;
  const Measurements count = measurements_of(options, has_fio);
  const double round_s = kShare * end.seconds_left() - count.in_a_round_of_fio * kFioStartSeconds;
  return std::clamp(round_s / count.in_a_round, kLeast, std::max(kLeast, options.seconds));
}

// Estimates the cost. In a mix of both directions half of the bytes are written.
BenchCost cost_of_io(const BenchOptions& options, const MachineSpeed& speed) {
  const double mix_s = seconds_of_mix(options, FioPeer::find().has_value());
  const auto space = static_cast<double>(io_space(options));
  const std::vector<std::string> names = names_of_io(options);
  const double wanted =
      static_cast<double>(wanted_of(options, names).size()) / static_cast<double>(names.size());
  return {.seconds = space / speed.drive_write_bytes_per_s + std::ceil(kMixes * wanted) * mix_s,
          .written_bytes = static_cast<std::uint64_t>(space + wanted * 1.5 * mix_s *
                                                                  speed.drive_write_bytes_per_s)};
}

// Leaves a part of the time for making the files, and the rest for a few rounds. A drive that takes
// a few MiB fast may take GiB several times slower.
void fit_io(BenchOptions& options, const MachineSpeed& speed) {
  constexpr double kFillShare = 0.08;
  constexpr double kFillBytesMax = 4.0 * kGiB;
  constexpr double kRoundsShare = 0.6;
  constexpr double kRounds = 3;
  constexpr double kSecondsMin = 0.02;
  const double limit_s = *options.time_limit_s;
  const bool has_fio = FioPeer::find().has_value();
  const double shortest = std::min(options.seconds, kScreeningSeconds / 2);
  BenchOptions hasty = options;
  hasty.seconds = shortest;
  if (seconds_of_grid(hasty, has_fio) > limit_s / 3) options.grid = false;
  const double fill_bytes =
      std::min(kFillBytesMax, kFillShare * limit_s * speed.drive_write_bytes_per_s);
  const double part = fill_bytes / static_cast<double>(io_space(options));
  if (part < 1) {
    const auto bytes =
        static_cast<std::size_t>(part * static_cast<double>(io_region_bytes(options)));
    options.bytes = std::max<std::size_t>(bytes / (4 * kIoBlockMax), 1) * 4 * kIoBlockMax;
  }
  const Measurements count = measurements_of(options, has_fio);
  const double round_s = kRoundsShare * limit_s / kMixes / kRounds;
  const double each_s = (round_s - count.in_a_round_of_fio * kFioStartSeconds) / count.in_a_round;
  options.seconds = std::clamp(each_s, kSecondsMin, std::max(kSecondsMin, options.seconds));
}

}  // namespace terrace
