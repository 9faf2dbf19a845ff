#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/io_load.h"
#include "bench/rounds.h"

// The contestants that bench io compares in the same rounds, and the results.
namespace terrace {

// Something that is measured in rounds, with the samples of both its figures.
struct Contestant {
  std::string name;  // "store, 512 KiB, depth 16"; unique among those compared
  std::string tool;  // "store"
  IoShape shape = {};
  std::function<IoRate(std::size_t round)> run;
  Samples rate = {};
  Samples cpu = {};
  Samples latency_p50 = {}, latency_p99 = {};  // seconds; empty if the tool has none

  // Returns the requests a second.
  Samples iops() const;
};
using Contestants = std::vector<Contestant>;

// Measures groups of contestants in the same rounds: the first of each group, the second of each,
// and so on. The rounds can be taken in several goes. Keeps references to the groups.
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

// Returns the best rate of the stores against the best rate of `limits`, with the figures of all
// stores as details.
BenchResult io_rate_result(const std::string& name, const Contestants& stores,
                           const Contestants& limits);
// Adds the rates that were measured with each shape.
void add_matrix(BenchResult& result, const Contestants& contestants);
// Adds all figures of each contestant.
void add_io_details(BenchResult& result, const Contestants& contestants);
// Returns the processor time for a gigabyte, of the cheapest store against the cheapest tool: with
// few requests in flight the time is spent on waking up, which is luck. Tools count only with these
// shapes.
BenchResult io_cpu_result(const std::string& name, const Contestants& stores,
                          const Contestants& tools, std::span<const IoShape> shapes);
// Returns the cost of checksums, round by round, against checksums alone.
BenchResult io_checksum_result(const std::string& name, const Contestant& checked,
                               const Contestant& unchecked, const Contestant& alone);

}  // namespace terrace
