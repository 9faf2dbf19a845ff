#pragma once

#include <functional>
#include <optional>
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
  std::string tool;  // "store"
  IoShape shape = {};
  std::function<IoRate(std::size_t round)> run;
  Samples rate = {};
  Samples cpu = {};
  Samples latency_p50 = {}, latency_p99 = {};  // seconds; empty of a tool without latencies

  // Requests a second.
  Samples iops() const;
};
using Contestants = std::vector<Contestant>;

// Measures groups of contestants in the same rounds: the first of each group, the second of each,
// and so on. The rounds can be taken in several goes. Refers to the groups.
class IoContest {
 public:
  explicit IoContest(const std::vector<Contestants*>& groups);

  // Takes rounds until there are `rounds.most`; publishes after each, when all have their samples.
  void take(const Rounds& rounds, FunctionRef<void()> publish);

 private:
  std::vector<Contestant*> all_;
  std::vector<std::vector<IoRate>> taken_;  // by contestant, of complete and incomplete rounds
  std::optional<InterleavedRounds> rounds_;
};

// The best rate of the stores against the best of what could be the limit, with the figures of all
// stores as details.
BenchResult io_rate_result(const std::string& name, const Contestants& stores,
                           const Contestants& limits);
// Adds the rates that were measured with each shape.
void add_matrix(BenchResult& result, const Contestants& contestants);
// Adds all figures of each.
void add_io_details(BenchResult& result, const Contestants& contestants);
// What the processors do for a gigabyte, of the cheapest of either: with few requests in flight the
// processors' time is that of waking up, which is luck. Tools count with these shapes alone.
BenchResult io_cpu_result(const std::string& name, const Contestants& stores,
                          const Contestants& tools, std::span<const IoShape> shapes);
// What checksums cost, round by round, against checksums alone.
BenchResult io_checksum_result(const std::string& name, const Contestant& checked,
                               const Contestant& unchecked, const Contestant& alone);

}  // namespace terrace
