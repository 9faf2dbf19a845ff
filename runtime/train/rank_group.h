#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/compute_backend.h"
#include "runtime/engine/step_ranks.h"
#include "runtime/step/lane_executor.h"

namespace terrace {

// Returns every rank's value, by rank. All ranks call it.
template <typename T>
std::vector<T> of_all_ranks(Communicator& world, T value) {
  std::vector<T> values(static_cast<std::size_t>(world.size()));
  world.all_gather(view(std::as_writable_bytes(std::span(values))),
                   view(std::as_writable_bytes(std::span(&value, 1))), {});
  return values;
}
// Returns the text of one rank on all ranks. All ranks call it.
std::string text_of_rank(Communicator& world, int rank, const std::string& text);

// How long ranks have waited for each other at the start of their collectives, in seconds, by rank.
struct RankWaits {
  std::vector<double> waited_s;      // each rank for others
  std::vector<double> waited_for_s;  // all others together for each rank

  RankWaits& operator+=(const RankWaits& other);
};

// The ranks of a run as one of them sees them, and what they agree on between steps. All ranks make
// the same calls in the same order; with one rank, each call returns what it was given. Throws
// CommError.
class RankGroup {
 public:
  // `world`: null with one rank; outlives the group. `stands_for`: see LaunchedRanks.
  RankGroup(Communicator* world, const MeshShape& shape, std::int32_t stands_for = 1);

  // Adds communicators made by the devices' exchange. Does nothing with one rank, or where the
  // devices have no exchange.
  void add_devices(const DeviceExchange* exchange, const CommunicatorOptions& options);

  // Returns the ranks as the engine takes them.
  const StepRanks& steps() const { return steps_; }
  Communicator* world() const { return world_; }
  // Returns the rank's number in `world`.
  std::int32_t rank() const { return world_ == nullptr ? 0 : world_->rank(); }
  std::int32_t count() const { return world_ == nullptr ? 1 : stands_for_ * world_->size(); }
  // Returns whether this is the rank that writes files and speaks to the user.
  bool is_first() const { return world_ == nullptr || world_->rank() == 0; }
  // Returns the pipeline stage of a rank of `world`.
  std::int32_t stage_of(std::size_t rank) const {
    return position_of(present_, static_cast<int>(rank)).pipeline;
  }
  std::int64_t data_ranks() const { return steps_.shape.data; }
  std::int64_t data_rank() const { return steps_.position.data; }

  // Returns whether `value` is true on any rank.
  bool any(bool value) const;
  // Returns when all ranks have come here.
  void wait_for_all() const;
  std::int64_t smallest(std::int64_t value) const;
  std::int64_t largest(std::int64_t value) const;
  // Returns whether all ranks give the same value.
  bool is_same(std::uint64_t value) const;
  // Returns whether the ranks of each pipeline stage give the same value.
  bool is_same_in_stages(std::uint64_t value) const;
  // Returns whether the ranks with copies of the same parameters give the same value: in islands
  // the ranks with the same place in their islands, else the data-parallel ranks.
  bool is_same_in_copies(std::uint64_t value) const;
  // Returns the sum of all ranks' values, added in rank order. A rank that stands for several
  // counts that many times.
  double sum(double value) const;
  // Returns the sum of the values of the ranks on this rank's host. `ranks_on_host`: their number
  // as the launcher says. If another number of ranks has the host's name, the ranks of the host are
  // assumed to have the mean of all ranks.
  double sum_on_host(double value, std::int32_t ranks_on_host) const;
  // Returns the smallest value of the ranks on machines with this machine's name.
  std::int64_t smallest_on_host(std::int64_t value) const;
  // Returns the first rank's text.
  std::string text_of_first(const std::string& text) const;
  // Replaces moved bytes and joules by their sum over all ranks, and busy times and peaks by the
  // largest.
  void combine(RunTotals& totals) const;
  // Returns the waits of all ranks since the last call, in the collectives of data- and
  // tensor-parallel ranks and, without a pipeline, in the sums at the end of a step. Returns empty
  // lists with one rank, and where no communicator knows them.
  RankWaits take_waits();

 private:
  // Returns whether every rank gives the value of the data-parallel rank first_of(its own).
  bool is_same_as(std::uint64_t value, const std::function<int(int)>& first_of) const;
  // Adds the waits of one of this rank's communicators to lists of all ranks.
  void add_waits(const Communicator* group, const std::function<int(int)>& world_rank,
                 std::span<double> waited_for_s) const;

  Communicator* world_;
  std::unique_ptr<Communicator> devices_;
  std::optional<StepCommunicators> communicators_;
  std::int32_t stands_for_ = 1;
  MeshShape present_;  // of the ranks that are in `world_`
  StepRanks steps_;
  std::vector<double> waits_taken_;  // by take_waits(), so far: this rank's, by the rank waited for
};

}  // namespace terrace
