#include "bench/network_probe.h"

#include <fmt/format.h>

#include <array>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "parallel/network_traffic.h"

namespace terrace {
namespace {

// Returns the seconds of a message, as the first rank measures them.
double message_s(Communicator& ranks) {
  constexpr int kRoundTrips = 500;
  std::array<double, 1> message = {1};
  const TensorView data = view(std::span<double>(message));
  const int last = ranks.size() - 1;
  const auto exchange = [&](int times) {
    for (int i = 0; i < times; ++i) {
      if (ranks.rank() == 0) {
        ranks.send(data, last, {});
        ranks.recv(data, last, {});
      } else if (ranks.rank() == last) {
        ranks.recv(data, 0, {});
        ranks.send(data, 0, {});
      }
    }
  };
  ranks.all_reduce(view(std::span<float>()), ReduceOp::kMax, {});
  exchange(kRoundTrips / 10);
  const SystemClock clock;
  const std::int64_t begin = clock.now_ns();
  exchange(kRoundTrips);
  return static_cast<double>(clock.now_ns() - begin) / 1e9 / (2 * kRoundTrips);
}

}  // namespace

std::string name_network(Communicator& world, int hosts) {
  if (hosts == 1) return "the memory of one host";
  constexpr std::size_t kBytes = 32 * kMiB;
  std::vector<std::byte> data(kBytes);
  world.broadcast(view(std::span(data)), 0, {});  // makes the connections
  const NetworkTraffic before = read_network_traffic();
  world.broadcast(view(std::span(data)), 0, {});
  const std::string network = network_that_carried(before, read_network_traffic(), kBytes);
  return network.empty() ? "a network that the system has no counters for" : network;
}

BenchResult message_latency(Communicator& ours, Communicator& library, const std::string& network,
                            int rounds) {
  BenchResult result{.name = kMessageLatency,
                     .unit = BenchUnit::kSeconds,
                     .value = {},
                     .limit = {},
                     .limit_is = "the MPI library's message between the same ranks",
                     .notes = {{"network", network}}};
  for (int round = 0; round < rounds; ++round) {
    result.value.add(message_s(ours));
    result.limit.add(message_s(library));
  }
  return result;
}

}  // namespace terrace
