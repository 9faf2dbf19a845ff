#include "bench/network_probe.h"

#include <fmt/format.h>

#include <array>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "bench/rounds.h"
#include "bench/timed_calls.h"
#include "parallel/network_traffic.h"

namespace terrace {
namespace {

// Returns the mean seconds of a round trip, as the first rank measures them.
double round_trip_s(Communicator& ranks, int trips) {
  std::array<double, 1> message = {1};
  const TensorView data = view(std::span<double>(message));
  const int last = ranks.size() - 1;
  ranks.all_reduce(view(std::span<float>()), ReduceOp::kMax, {});
  const SystemClock clock;
  const std::int64_t begin = clock.now_ns();
  for (int i = 0; i < trips; ++i) {
    if (ranks.rank() == 0) {
      ranks.send(data, last, {});
      ranks.recv(data, last, {});
    } else if (ranks.rank() == last) {
      ranks.recv(data, 0, {});
      ranks.send(data, 0, {});
    }
  }
  return static_cast<double>(clock.now_ns() - begin) / 1e9 / trips;
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

void measure_message_latency(const MeasuredMessages& messages, BenchRecord& record) {
  constexpr int kRoundTrips = 500;
  constexpr double kShareOfTime = 0.1;
  constexpr double kRanksMeasured = 2;  // ours and the library's
  Communicator& ours = messages.ours;
  const bool is_first = ours.rank() == 0;
  const double seconds =
      -longest_of(ours, -kShareOfTime * record.end().seconds_left() / messages.rounds) /
      kRanksMeasured;
  const TimedCalls calls(kRoundTrips, seconds);
  const auto message_s = [&](Communicator& ranks) {
    round_trip_s(ranks, 1);  // makes the connection
    return calls.seconds_of_call([&](int trips) {
      const double mean = round_trip_s(ranks, trips);
      return longest_of(ours, is_first ? mean : 0);
    }) / 2;
  };
  const std::vector<Measurement> measurements = {[&] { return message_s(ours); },
                                                 [&] { return message_s(messages.library); }};
  Rounds rounds = record.rounds(messages.rounds, kShareOfTime);
  rounds.agreed = [&](bool wants_end) { return any_wants_end(ours, wants_end); };
  interleave(measurements, rounds, [&](const std::vector<Samples>& samples) {
    if (!is_first) return;
    record.put({.name = kMessageLatency,
                .unit = BenchUnit::kSeconds,
                .value = samples[0],
                .limit = samples[1],
                .limit_is = "the MPI library's message between the same ranks",
                .notes = {{"network", messages.network}}});
  });
}

}  // namespace terrace
