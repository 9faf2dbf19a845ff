#include "bench/rounds.h"

#include <algorithm>

#include "base/clock.h"
#include "parallel/communicator.h"

namespace terrace {
namespace {

double seconds_since(std::int64_t begin_ns) {
  return static_cast<double>(SystemClock().now_ns() - begin_ns) * 1e-9;
}

// Returns the nanoseconds of a call: the mean of all calls that begin within `within_ns`, at least
// one.
double ns_of(const std::function<void()>& call, std::int64_t within_ns) {
  const SystemClock clock;
  const std::int64_t begin_ns = clock.now_ns();
  std::int64_t end_ns = begin_ns;
  double calls = 0;
  do {
    call();
    end_ns = clock.now_ns();
    ++calls;
  } while (end_ns - begin_ns < within_ns);
  return static_cast<double>(end_ns - begin_ns) / calls;
}

// The decision whether the next round or measurement may begin.
class RoundsLeft {
 public:
  explicit RoundsLeft(const Rounds& rounds) : rounds_(rounds) {}

  // Returns whether a round may begin: the first one, or one after a complete one that took
  // `last_round_s`.
  bool begins_round(double last_round_s) {
    const double left_s = std::min(rounds_.end.seconds_left(), rounds_.own_end.seconds_left());
    return !any_ends(last_round_s > 0 && left_s < last_round_s);
  }
  bool begins_measurement() {
    return !any_ends(rounds_.end.seconds_left() <= rounds_.measurement_s);
  }

 private:
  bool any_ends(bool wants_end) {
    const bool ends = rounds_.agreed ? rounds_.agreed(wants_end) : wants_end;
    if (ends && rounds_.cut_short != nullptr) *rounds_.cut_short = true;
    return ends;
  }

  const Rounds& rounds_;
};

}  // namespace

bool any_wants_end(Communicator& ranks, bool wants_end) {
  float wish = wants_end ? 1 : 0;
  ranks.all_reduce(view(std::span(&wish, 1)), ReduceOp::kMax, {});
  return wish != 0;
}

double longest_of(Communicator& ranks, double seconds) {
  auto longest = static_cast<float>(seconds);
  ranks.all_reduce(view(std::span(&longest, 1)), ReduceOp::kMax, {});
  return longest;
}

void InterleavedRounds::take(const Rounds& rounds, Publish publish) {
  RoundsLeft left(rounds);
  while (round_ < static_cast<std::size_t>(rounds.most)) {
    if (!left.begins_round(last_round_s_)) return;
    const std::int64_t begin_ns = SystemClock().now_ns();
    std::vector<Samples> more = samples_;
    for (std::size_t i = 0; i < measurements_.size(); ++i) {
      if (!left.begins_measurement()) {
        if (round_ == 0) throw TimeIsUp();
        return;
      }
      const std::size_t at = (i + round_) % measurements_.size();
      more[at].add(measurements_[at]());
    }
    samples_ = std::move(more);
    last_round_s_ = seconds_since(begin_ns);
    ++round_;
    publish(samples_);
  }
}

void interleave(std::span<const Measurement> measurements, const Rounds& rounds, Publish publish) {
  InterleavedRounds({measurements.begin(), measurements.end()}).take(rounds, publish);
}

std::size_t quickest_of(std::span<const std::function<void()>> ways) {
  constexpr int kTries = 3;
  constexpr std::int64_t kTryNs = 2'000'000;  // some calls are over in a microsecond
  constexpr double kLongNs = 2e8;
  if (ways.size() == 1) return 0;
  std::vector<double> least_ns;
  for (const std::function<void()>& way : ways) least_ns.push_back(ns_of(way, 0));
  if (std::ranges::min(least_ns) < kLongNs) {
    std::vector<Measurement> timed;
    for (const std::function<void()>& way : ways) {
      timed.emplace_back([&way] { return ns_of(way, kTryNs); });
    }
    interleave(timed, {.most = kTries}, [&](const std::vector<Samples>& times) {
      for (std::size_t i = 0; i < times.size(); ++i) {
        least_ns[i] = std::min(least_ns[i], times[i].low());
      }
    });
  }
  return static_cast<std::size_t>(std::ranges::min_element(least_ns) - least_ns.begin());
}

}  // namespace terrace
