#include "runtime/train/link_times.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <functional>
#include <utility>
#include <vector>

#include "base/bytes.h"

namespace terrace {
namespace {

constexpr int kTries = 3;  // of which the fastest counts
constexpr std::size_t kBytes = 4 * kMiB;

double thread_seconds() {
  std::timespec time = {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

struct LinkTime {
  double seconds = 1e30;
  double cores = 0;
};

LinkTime fastest(const std::function<void()>& transfer) {
  LinkTime least;
  for (int i = 0; i < kTries; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const double busy_before_s = thread_seconds();
    transfer();
    const double busy_s = thread_seconds() - busy_before_s;
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    if (passed.count() >= least.seconds) continue;
    least = {passed.count(), std::clamp(busy_s / passed.count(), 0.0, 1.0)};
  }
  return least;
}

// Returns the rate of a link that takes `large` for `bytes`, and `small` for next to nothing.
LinkRate rate_of(double bytes, const LinkTime& large, const LinkTime& small) {
  const double latency_s = std::min(small.seconds, large.seconds / 2);
  return {bytes / (large.seconds - latency_s), latency_s, large.cores};
}

LinkRate collective_rate(Communicator& group, std::vector<float>& numbers) {
  const auto reduce = [&](std::size_t count) {
    return fastest([&] {
      group.all_reduce(view(reinterpret_cast<std::byte*>(numbers.data()), DType::kF32,
                            static_cast<std::int64_t>(count)),
                       ReduceOp::kSum, {});
    });
  };
  const double ranks = group.size();
  const double sent = 2 * (ranks - 1) / ranks * static_cast<double>(numbers.size()) * sizeof(float);
  const LinkTime small = reduce(1024);
  return rate_of(sent, reduce(numbers.size()), small);
}

// A message from each stage to the next, one pair of stages after the other.
LinkRate message_rate(const StepRanks& ranks, std::vector<float>& numbers) {
  const StageLinks& links = ranks.links;
  const auto pass_on = [&](std::size_t count) {
    const TensorView message = view(reinterpret_cast<std::byte*>(numbers.data()), DType::kF32,
                                    static_cast<std::int64_t>(count));
    LinkTime received;
    LinkTime sent;
    if (ranks.position.pipeline > 0) {
      received = fastest([&] { links.previous.host->recv(message, kEarlierStage, {}); });
    }
    if (ranks.position.pipeline + 1 < ranks.shape.pipeline) {
      sent = fastest([&] { links.next.host->send(message, kLaterStage, {}); });
    }
    return received.seconds < sent.seconds ? received : sent;
  };
  const LinkTime small = pass_on(1024);
  return rate_of(static_cast<double>(numbers.size() * sizeof(float)), pass_on(numbers.size()),
                 small);
}

}  // namespace

void measure_links(const StepRanks& ranks, MachineProfile& profile) {
  std::vector<float> numbers(kBytes / sizeof(float), 0.0F);
  for (const auto& [axis, group] : {std::pair(MeshAxis::kData, ranks.data.host),
                                    std::pair(MeshAxis::kIsland, ranks.island.host),
                                    std::pair(MeshAxis::kInterIsland, ranks.inter_island.host),
                                    std::pair(MeshAxis::kTensor, ranks.tensor.host)}) {
    if (group == nullptr || group->size() == 1) continue;
    link_of(profile, axis) = collective_rate(*group, numbers);
  }
  if (ranks.links.next.host == nullptr && ranks.links.previous.host == nullptr) return;
  link_of(profile, MeshAxis::kPipeline) = message_rate(ranks, numbers);
}

}  // namespace terrace
