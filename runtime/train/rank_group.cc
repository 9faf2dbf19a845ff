#include "runtime/train/rank_group.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/host_name.h"

namespace terrace {

std::string text_of_rank(Communicator& world, int rank, const std::string& text) {
  std::int32_t size = static_cast<std::int32_t>(text.size());
  world.broadcast(view(std::span(&size, 1)), rank, {});
  std::string shared =
      world.rank() == rank ? text : std::string(static_cast<std::size_t>(size), ' ');
  world.broadcast(view(std::as_writable_bytes(std::span(shared))), rank, {});
  return shared;
}

RankGroup::RankGroup(Communicator* world, const MeshShape& shape, std::int32_t stands_for)
    : world_(world), stands_for_(stands_for), present_(shape) {
  if (world == nullptr) return;
  present_.data /= stands_for;
  if (stands_for > 1) present_.islands = 1;  // a dry run has one rank of all islands
  communicators_.emplace(*world, present_);
  steps_ = communicators_->ranks();
  steps_.shape = shape;
}

void RankGroup::add_devices(const DeviceExchange* exchange, const CommunicatorOptions& options) {
  if (world_ == nullptr || exchange == nullptr) return;
  devices_ = exchange->make_communicator(*world_, options);
  communicators_->add_devices(*devices_);
  steps_ = communicators_->ranks();
}

bool RankGroup::any(bool value) const {
  if (world_ == nullptr) return value;
  std::int32_t flag = value ? 1 : 0;
  world_->all_reduce(view(std::span(&flag, 1)), ReduceOp::kMax, {});
  return flag != 0;
}

std::int64_t RankGroup::smallest(std::int64_t value) const {
  if (world_ == nullptr) return value;
  const std::vector<std::int64_t> values = of_all_ranks(*world_, value);
  return *std::min_element(values.begin(), values.end());
}

std::int64_t RankGroup::largest(std::int64_t value) const { return -smallest(-value); }

bool RankGroup::is_same(std::uint64_t value) const {
  if (world_ == nullptr) return true;
  const std::vector<std::uint64_t> values = of_all_ranks(*world_, value);
  return std::ranges::count(values, values.front()) == std::ssize(values);
}

void RankGroup::wait_for_all() const { any(false); }

bool RankGroup::is_same_in_stages(std::uint64_t value) const {
  return is_same_as(value, [](int) { return 0; });
}

bool RankGroup::is_same_in_copies(std::uint64_t value) const {
  const int places = present_.islands > 1 ? present_.island_ranks() : 1;
  return is_same_as(value, [places](int data) { return data % places; });
}

bool RankGroup::is_same_as(std::uint64_t value, const std::function<int(int)>& first_of) const {
  if (world_ == nullptr) return true;
  const std::vector<std::uint64_t> values = of_all_ranks(*world_, value);
  for (std::size_t r = 0; r < values.size(); ++r) {
    MeshPosition first = position_of(present_, static_cast<int>(r));
    first.data = first_of(first.data);
    if (values[r] != values[static_cast<std::size_t>(rank_of(present_, first))]) return false;
  }
  return true;
}

double RankGroup::sum(double value) const {
  if (world_ == nullptr) return value;
  double sum = 0;
  for (const double one : of_all_ranks(*world_, value)) sum += one;
  return stands_for_ * sum;
}

namespace {

// A value of a rank, with a number that stands for its host.
template <typename T>
struct OnHost {
  std::uint64_t host = 0;
  T value = 0;
};

// Returns the values of the ranks on this rank's host.
template <typename T>
std::vector<T> values_on_host(Communicator& world, T value) {
  const std::string name = host_name();
  const OnHost<T> own = {hash_bytes(std::as_bytes(std::span(name))), value};
  std::vector<T> values;
  for (const OnHost<T>& rank : of_all_ranks(world, own)) {
    if (rank.host == own.host) values.push_back(rank.value);
  }
  return values;
}

}  // namespace

double RankGroup::sum_on_host(double value, std::int32_t ranks_on_host) const {
  if (world_ == nullptr) return value;
  const std::vector<double> values = values_on_host(*world_, value);
  const double mean = sum(value) / count();
  if (stands_for_ * std::ssize(values) != ranks_on_host) return mean * ranks_on_host;
  double sum_of_host = 0;
  for (const double one : values) sum_of_host += one;
  return stands_for_ * sum_of_host;
}

std::int64_t RankGroup::smallest_on_host(std::int64_t value) const {
  if (world_ == nullptr) return value;
  return std::ranges::min(values_on_host(*world_, value));
}

std::string RankGroup::text_of_first(const std::string& text) const {
  if (world_ == nullptr) return text;
  return text_of_rank(*world_, 0, text);
}

RankWaits& RankWaits::operator+=(const RankWaits& other) {
  waited_s.resize(std::max(waited_s.size(), other.waited_s.size()));
  waited_for_s.resize(waited_s.size());
  for (std::size_t rank = 0; rank < other.waited_s.size(); ++rank) {
    waited_s[rank] += other.waited_s[rank];
    waited_for_s[rank] += other.waited_for_s[rank];
  }
  return *this;
}

void RankGroup::add_waits(const Communicator* group, const std::function<int(int)>& world_rank,
                          std::span<double> waited_for_s) const {
  if (group == nullptr) return;
  const std::vector<double> waits = group->waited_for_s();
  for (std::size_t rank = 0; rank < waits.size(); ++rank) {
    const int other = world_rank(static_cast<int>(rank));
    waited_for_s[static_cast<std::size_t>(other)] += waits[rank];
  }
}

RankWaits RankGroup::take_waits() {
  if (world_ == nullptr || stands_for_ != 1) return {};
  const auto ranks = static_cast<std::size_t>(world_->size());
  std::vector<double> so_far(ranks);
  const auto along = [this](int MeshPosition::* axis) {
    return [this, axis](int rank) {
      MeshPosition position = steps_.position;
      position.*axis = rank;
      return rank_of(present_, position);
    };
  };
  add_waits(steps_.data.host, along(&MeshPosition::data), so_far);
  const auto along_data = [this](int first, int stride) {
    return [this, first, stride](int rank) {
      MeshPosition position = steps_.position;
      position.data = first + rank * stride;
      return rank_of(present_, position);
    };
  };
  const int island_ranks = present_.island_ranks();
  const int place = steps_.position.data % island_ranks;
  add_waits(steps_.island.host, along_data(steps_.position.data - place, 1), so_far);
  add_waits(steps_.inter_island.host, along_data(place, island_ranks), so_far);
  add_waits(steps_.tensor.host, along(&MeshPosition::tensor), so_far);
  // At the end of a step the stages of a pipeline wait for each other by their schedule.
  if (present_.pipeline == 1) add_waits(steps_.world, [](int rank) { return rank; }, so_far);
  waits_taken_.resize(ranks);
  // Each rank's own wait, then its waits for each rank; added up over all ranks.
  std::vector<double> sums(2 * ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const double waited = so_far[rank] - waits_taken_[rank];
    sums[static_cast<std::size_t>(world_->rank())] += waited;
    sums[ranks + rank] = waited;
  }
  waits_taken_ = std::move(so_far);
  world_->all_reduce(view(std::span(sums)), ReduceOp::kSum, {});
  if (std::ranges::all_of(sums, [](double one) { return one == 0; })) return {};
  const auto middle = sums.begin() + static_cast<std::ptrdiff_t>(ranks);
  return {.waited_s = {sums.begin(), middle}, .waited_for_s = {middle, sums.end()}};
}

void RankGroup::combine(RunTotals& totals) const {
  if (world_ == nullptr) return;
  const std::vector<RunTotals> all = of_all_ranks(*world_, totals);
  totals.moved = totals.moved_by_deferred = {};
  totals.host_joules = totals.device_joules = 0;
  for (const RunTotals& rank : all) {
    totals.moved += rank.moved;
    totals.moved_by_deferred += rank.moved_by_deferred;
    totals.host_joules += rank.host_joules;
    totals.device_joules += rank.device_joules;
    totals.process_peak_bytes = std::max(totals.process_peak_bytes, rank.process_peak_bytes);
    for (std::size_t l = 0; l < kLaneCount; ++l) {
      totals.busy_s[l] = std::max(totals.busy_s[l], rank.busy_s[l]);
    }
  }
}

}  // namespace terrace
