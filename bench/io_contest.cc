#include "bench/io_contest.h"

#include <algorithm>
#include <limits>

namespace terrace {
namespace {

const Contestant& best_of(const Contestants& contestants) {
  return *std::ranges::max_element(
      contestants, {}, [](const Contestant& contestant) { return contestant.rate.median(); });
}

double cost_of(const Contestant& one) {
  // fio counts whole milliseconds: of a run so short that it has none, it does not tell.
  const double cpu = one.cpu.median();
  return cpu > 0 ? cpu : std::numeric_limits<double>::infinity();
}

// The one that needs the least of the processors, with one of these shapes.
const Contestant& cheapest_of(const Contestants& contestants, std::span<const IoShape> shapes) {
  const auto cost = [&](const Contestant& one) {
    return std::ranges::count(shapes, one.shape) != 0 ? cost_of(one)
                                                      : std::numeric_limits<double>::infinity();
  };
  return *std::ranges::min_element(contestants, {}, cost);
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

}  // namespace

void measure_contestants(const std::vector<Contestants*>& groups, const Rounds& rounds,
                         FunctionRef<void()> publish) {
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
  interleave(measurements, rounds, [&](const std::vector<Samples>& rates) {
    for (std::size_t i = 0; i < all.size(); ++i) all[i]->rate = rates[i];
    publish();
  });
}

BenchResult io_rate_result(const std::string& name, const Contestants& stores,
                           const Contestants& limits) {
  const Contestant& limit = best_of(limits);
  const Contestant& store = best_of(stores);
  BenchResult result{
      .name = name, .value = store.rate, .limit = limit.rate, .limit_is = limit.name};
  add_io_details(result, stores);
  result.notes = {{"fastest", store.name}};
  return result;
}

void add_io_details(BenchResult& result, const Contestants& contestants) {
  for (const Contestant& one : contestants) {
    const std::string key = snake_name(one.name);
    result.details.push_back({key, "GB/s", one.rate});
    result.details.push_back({key + "_cpu", "ms/GB", one.cpu});
  }
}

BenchResult io_cpu_result(const std::string& name, const Contestants& stores,
                          const Contestants& tools, std::span<const IoShape> shapes) {
  const Contestant& store = cheapest_of(stores, shapes);
  const Contestant& limit = cheapest_of(tools, shapes);
  return {.name = name,
          .unit = BenchUnit::kMillisecondsPerGigabyte,
          .value = store.cpu,
          .limit = limit.cpu,
          .limit_is = limit.name,
          .notes = {{"cheapest", store.name}}};
}

BenchResult io_checksum_result(const std::string& name, const Contestant& checked,
                               const Contestant& unchecked, const Contestant& alone) {
  return {.name = name,
          .unit = BenchUnit::kMillisecondsPerGigabyte,
          .value = difference(checked.cpu, unchecked.cpu),
          .limit = alone.cpu,
          .limit_is = alone.name};
}

}  // namespace terrace
