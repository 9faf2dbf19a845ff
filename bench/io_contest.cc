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
  // fio counts whole milliseconds, so it does not tell the time of a run that has none.
  const double cpu = one.cpu.median();
  return cpu > 0 ? cpu : std::numeric_limits<double>::infinity();
}

// Returns the contestant that needs the least processor time, with one of these shapes.
const Contestant& cheapest_of(const Contestants& contestants, std::span<const IoShape> shapes) {
  const auto cost = [&](const Contestant& one) {
    return std::ranges::count(shapes, one.shape) != 0 ? cost_of(one)
                                                      : std::numeric_limits<double>::infinity();
  };
  return *std::ranges::min_element(contestants, {}, cost);
}

// Returns the difference round by round. It stays positive if the noise is larger, so that a ratio
// can still be made of it.
Samples difference(const Samples& more, const Samples& less) {
  constexpr double kLeast = 1e-3;
  Samples result;
  for (std::size_t i = 0; i < more.values().size(); ++i) {
    result.add(std::max(kLeast, more.values()[i] - less.values()[i]));
  }
  return result;
}

}  // namespace

Samples Contestant::iops() const {
  const auto block_bytes = static_cast<double>(shape.block_bytes);
  return rate.mapped([block_bytes](double gb_per_s) { return gb_per_s * 1e9 / block_bytes; });
}

IoContest::IoContest(const std::vector<Contestants*>& groups) {
  std::size_t most = 0;
  for (const Contestants* group : groups) most = std::max(most, group->size());
  for (std::size_t i = 0; i < most; ++i) {
    for (Contestants* group : groups) {
      if (i < group->size()) all_.push_back(&(*group)[i]);
    }
  }
  taken_.resize(all_.size());
  std::vector<Measurement> measurements;
  for (std::size_t i = 0; i < all_.size(); ++i) {
    measurements.emplace_back([this, i] {
      taken_[i].push_back(all_[i]->run(taken_[i].size()));
      return taken_[i].back().gb_per_s;
    });
  }
  rounds_.emplace(std::move(measurements));
}

void IoContest::take(const Rounds& rounds, FunctionRef<void()> publish) {
  rounds_->take(rounds, [&](const std::vector<Samples>& rates) {
    for (std::size_t i = 0; i < all_.size(); ++i) {
      const IoRate& last = taken_[i].back();
      all_[i]->rate = rates[i];
      all_[i]->cpu.add(last.cpu_ms_per_gb);
      if (last.latency_p99_s == 0) continue;
      all_[i]->latency_p50.add(last.latency_p50_s);
      all_[i]->latency_p99.add(last.latency_p99_s);
    }
    publish();
  });
}

BenchResult io_rate_result(const std::string& name, const Contestants& stores,
                           const Contestants& limits) {
  const Contestant& limit = best_of(limits);
  const Contestant& store = best_of(stores);
  BenchResult result{
      .name = name, .value = store.rate, .limit = limit.rate, .limit_is = limit.name};
  result.details = {{"iops", "requests/s", store.iops()},
                    {"limit_iops", "requests/s", limit.iops()}};
  if (!store.latency_p99.empty()) {
    result.details.push_back({"latency_p50", "s", store.latency_p50});
    result.details.push_back({"latency_p99", "s", store.latency_p99});
  }
  add_io_details(result, stores);
  result.notes = {{"fastest", store.name}};
  return result;
}

void add_io_details(BenchResult& result, const Contestants& contestants) {
  for (const Contestant& one : contestants) {
    const std::string key = snake_name(one.name);
    result.details.push_back({key, "GB/s", one.rate});
    result.details.push_back({key + "_cpu", "ms/GB", one.cpu});
    if (one.latency_p99.empty()) continue;
    result.details.push_back({key + "_p50", "s", one.latency_p50});
    result.details.push_back({key + "_p99", "s", one.latency_p99});
  }
}

void add_matrix(BenchResult& result, const Contestants& contestants) {
  for (const Contestant& one : contestants) {
    result.matrix.push_back({.tool = one.tool,
                             .block_bytes = one.shape.block_bytes,
                             .depth = one.shape.depth,
                             .gb_per_s = one.rate.median(),
                             .rounds = one.rate.count()});
  }
}

BenchResult io_cpu_result(const std::string& name, const Contestants& stores,
                          const Contestants& tools, std::span<const IoShape> shapes) {
  const Contestant& store = *std::ranges::min_element(stores, {}, cost_of);
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
