#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/io_load.h"
#include "bench/rounds.h"

// What bench io compares in the same rounds, and the results of that.
namespace terrace {

// Something that is measured in rounds, with the samples of both its figures.
struct Contestant {
  std::string name;  // "store, 512 KiB, depth 16"; no two that are compared have the same
  IoShape shape = {};
  std::function<IoRate(std::size_t round)> run;
  Samples rate = {};
  Samples cpu = {};
};
using Contestants = std::vector<Contestant>;

// Measures all of them in the same rounds: the first of each group, the second of each, and so on.
// Publishes after each round, when all have their samples.
void measure_contestants(const std::vector<Contestants*>& groups, const Rounds& rounds,
                         FunctionRef<void()> publish);

// The best rate of the stores against the best of what could be the limit, with the figures of all
// stores as details.
BenchResult io_rate_result(const std::string& name, const Contestants& stores,
                           const Contestants& limits);
// Adds both figures of each.
void add_io_details(BenchResult& result, const Contestants& contestants);
// What the processors do for a gigabyte, of the cheapest of either: with few requests in flight the
// processors' time is that of waking up, which is luck. Tools count with these shapes alone.
BenchResult io_cpu_result(const std::string& name, const Contestants& stores,
                          const Contestants& tools, std::span<const IoShape> shapes);
// What checksums cost, round by round, against checksums alone.
BenchResult io_checksum_result(const std::string& name, const Contestant& checked,
                               const Contestant& unchecked, const Contestant& alone);

}  // namespace terrace
