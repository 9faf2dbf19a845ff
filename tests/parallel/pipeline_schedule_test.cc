#include "parallel/pipeline_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <ostream>
#include <set>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "base/philox.h"

namespace terrace {
namespace {

// The times of one micro-batch through one virtual stage, in units of time.
constexpr int kForwardTime = 1;
constexpr int kBackwardTime = 2;

struct Simulated {
  int makespan = 0;
  bool finished = false;  // false: a stage waited for ever
};

// Runs the slots of every stage in order. A slot starts as soon as its input is there: the same
// micro-batch from the preceding virtual stage of the model, or from the following one for a
// backward.
class Simulation {
 public:
  explicit Simulation(const PipelineShape& shape) : shape_(shape) {
    for (int stage = 0; stage < shape.stages; ++stage) {
      slots_.push_back(pipeline_slots(shape, stage));
    }
  }

  Simulated run() {
    std::vector<std::size_t> next(slots_.size(), 0);
    std::vector<int> free_at(slots_.size(), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t stage = 0; stage < slots_.size(); ++stage) {
        while (next[stage] < slots_[stage].size()) {
          const PipelineSlot& slot = slots_[stage][next[stage]];
          const int ready = ready_at(slot, static_cast<int>(stage));
          if (ready < 0) break;
          const bool forward = slot.pass == PipelinePass::kForward;
          free_at[stage] =
              std::max(free_at[stage], ready) + (forward ? kForwardTime : kBackwardTime);
          done_[{forward, slot.micro_batch, number_of(slot, static_cast<int>(stage))}] =
              free_at[stage];
          ++next[stage];
          moved = true;
        }
      }
    }
    Simulated result;
    result.makespan = *std::max_element(free_at.begin(), free_at.end());
    result.finished = true;
    for (std::size_t stage = 0; stage < slots_.size(); ++stage) {
      result.finished = result.finished && next[stage] == slots_[stage].size();
    }
    return result;
  }

 private:
  int number_of(const PipelineSlot& slot, int stage) const {
    return slot.virtual_stage * shape_.stages + stage;
  }
  // Returns -1 if it is not done yet.
  int at(bool forward, int micro_batch, int number) const {
    const auto found = done_.find({forward, micro_batch, number});
    return found == done_.end() ? -1 : found->second;
  }
  int ready_at(const PipelineSlot& slot, int stage) const {
    const int number = number_of(slot, stage);
    const int last = shape_.stages * shape_.virtual_stages - 1;
    if (slot.pass == PipelinePass::kForward) {
      return number == 0 ? 0 : at(true, slot.micro_batch, number - 1);
    }
    const int own = at(true, slot.micro_batch, number);
    if (number == last || own < 0) return own;
    const int after = at(false, slot.micro_batch, number + 1);
    return after < 0 ? -1 : std::max(own, after);
  }

  const PipelineShape shape_;
  std::vector<std::vector<PipelineSlot>> slots_;
  std::map<std::tuple<bool, int, int>, int> done_;  // (forward, micro-batch, virtual stage): when
};

// Returns the largest number of forwards whose backward is still to come.
int held_at_most(const std::vector<PipelineSlot>& slots) {
  int held = 0;
  int most = 0;
  for (const PipelineSlot& slot : slots) {
    held += slot.pass == PipelinePass::kForward ? 1 : -1;
    most = std::max(most, held);
  }
  return most;
}

std::vector<PipelineShape> shapes(PipelineSchedule schedule) {
  std::vector<PipelineShape> all;
  for (const int stages : {1, 2, 3, 4, 8}) {
    for (const int micro_batches : {1, 2, 3, 4, 8, 12, 16, 24}) {
      for (const int virtual_stages : {1, 2, 3, 4}) {
        const bool interleaved = schedule == PipelineSchedule::kInterleaved;
        if (!interleaved && virtual_stages != 1) continue;
        if (interleaved && micro_batches % stages != 0) continue;
        all.push_back({schedule, stages, micro_batches, virtual_stages});
      }
    }
  }
  return all;
}

class PipelineScheduleTest : public testing::TestWithParam<PipelineSchedule> {};

TEST_P(PipelineScheduleTest, EverythingIsDoneOnceAndMicroBatchesAscend) {
  for (const PipelineShape& shape : shapes(GetParam())) {
    for (int stage = 0; stage < shape.stages; ++stage) {
      std::map<std::pair<PipelinePass, int>, int> next;  // (pass, virtual stage): micro-batch
      for (const PipelineSlot& slot : pipeline_slots(shape, stage)) {
        EXPECT_EQ(slot.micro_batch, (next[{slot.pass, slot.virtual_stage}]++));
      }
      EXPECT_EQ(next.size(), 2U * static_cast<std::size_t>(shape.virtual_stages));
      for (const auto& [what, count] : next) EXPECT_EQ(count, shape.micro_batches);
    }
  }
}

// With equal stages only the ramps are lost: the makespan equals the one in the papers exactly.
TEST_P(PipelineScheduleTest, TheBubbleIsThatOfThePapers) {
  for (const PipelineShape& shape : shapes(GetParam())) {
    const Simulated simulated = Simulation(shape).run();
    ASSERT_TRUE(simulated.finished) << shape.stages << " stages, " << shape.micro_batches;
    const int work = shape.micro_batches * shape.virtual_stages * (kForwardTime + kBackwardTime);
    const int bubble = (shape.stages - 1) * (kForwardTime + kBackwardTime);
    EXPECT_EQ(simulated.makespan, work + bubble)
        << shape.stages << " stages, " << shape.micro_batches << " micro-batches, "
        << shape.virtual_stages << " virtual";
  }
}

TEST_P(PipelineScheduleTest, ActivationsHeldAreBounded) {
  for (const PipelineShape& shape : shapes(GetParam())) {
    for (int stage = 0; stage < shape.stages; ++stage) {
      const int total = shape.micro_batches * shape.virtual_stages;
      int bound = total;
      if (GetParam() == PipelineSchedule::k1F1B || shape.virtual_stages == 1) {
        bound = shape.stages - stage;
      } else {
        bound = 2 * (shape.stages - stage - 1) + (shape.virtual_stages - 1) * shape.stages + 1;
      }
      if (GetParam() == PipelineSchedule::kGpipe) bound = total;
      EXPECT_EQ(held_at_most(pipeline_slots(shape, stage)), std::min(bound, total));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, PipelineScheduleTest,
                         testing::Values(PipelineSchedule::kGpipe, PipelineSchedule::k1F1B,
                                         PipelineSchedule::kInterleaved));

// Figure 4 of arXiv 2104.04473, top: four stages, eight micro-batches.
TEST(PipelineSlotsTest, OneForwardOneBackward) {
  const auto slots = pipeline_slots({PipelineSchedule::k1F1B, 4, 8, 1}, 2);
  const auto f = [](int micro_batch) {
    return PipelineSlot{PipelinePass::kForward, micro_batch, 0};
  };
  const auto b = [](int micro_batch) {
    return PipelineSlot{PipelinePass::kBackward, micro_batch, 0};
  };
  const std::vector<PipelineSlot> expected = {f(0), f(1), b(0), f(2), b(1), f(3), b(2), f(4),
                                              b(3), f(5), b(4), f(6), b(5), f(7), b(6), b(7)};
  EXPECT_EQ(slots, expected);
}

TEST(PipelineSlotsTest, ShapesWithoutAScheduleAreRefused) {
  EXPECT_THROW(pipeline_slots({PipelineSchedule::k1F1B, 4, 8, 2}, 0), ConfigError);
  EXPECT_THROW(pipeline_slots({PipelineSchedule::kInterleaved, 4, 6, 2}, 0), ConfigError);
}

// Each stage has a speed. Stage n has the pieces n, n + stages, ...
double largest_run(const std::vector<double>& costs, const std::vector<int>& firsts,
                   const std::vector<double>& speeds) {
  double largest = 0;
  for (std::size_t k = 0; k + 1 < firsts.size(); ++k) {
    EXPECT_LT(firsts[k], firsts[k + 1]);
    const double sum =
        std::accumulate(costs.begin() + firsts[k], costs.begin() + firsts[k + 1], 0.0);
    largest = std::max(largest, sum / speeds[k % speeds.size()]);
  }
  return largest;
}

// Finds the smallest possible largest run by trying every cut.
double least_by_trying(const std::vector<double>& costs, std::size_t pieces,
                       const std::vector<double>& speeds, std::size_t piece = 0,
                       std::size_t begin = 0) {
  const double speed = speeds[piece % speeds.size()];
  if (piece + 1 == pieces) {
    return std::accumulate(costs.begin() + static_cast<std::ptrdiff_t>(begin), costs.end(), 0.0) /
           speed;
  }
  double least = 1e300;
  double run = 0;
  for (std::size_t end = begin + 1; end + pieces - piece - 1 <= costs.size(); ++end) {
    run += costs[end - 1];
    const double others = least_by_trying(costs, pieces, speeds, piece + 1, end);
    least = std::min(least, std::max(run / speed, others));
  }
  return least;
}

TEST(BalanceStagesTest, NoCutHasASmallerLargestStage) {
  for (std::uint64_t round = 0; round < 60; ++round) {
    std::vector<double> costs;
    const std::size_t units = 1 + philox({5}, {round, 0, 0})[0] % 11;
    for (std::size_t unit = 0; unit < units; ++unit) {
      costs.push_back(1 + philox({6}, {round, static_cast<std::uint32_t>(unit), 0})[0] % 9);
    }
    for (std::size_t pieces = 1; pieces <= units; ++pieces) {
      for (const std::vector<double>& speeds :
           {std::vector<double>{1}, std::vector<double>{1, 0.5}, std::vector<double>{0.25, 4, 1}}) {
        const std::vector<int> firsts = balance_stages(costs, static_cast<int>(pieces), speeds);
        ASSERT_EQ(firsts.size(), pieces + 1);
        EXPECT_EQ(firsts.front(), 0);
        EXPECT_EQ(firsts.back(), static_cast<int>(units));
        EXPECT_EQ(largest_run(costs, firsts, speeds), least_by_trying(costs, pieces, speeds))
            << "round " << round;
      }
    }
  }
}

TEST(BalanceStagesTest, AStageOfHalfTheSpeedGetsHalfTheUnits) {
  const std::vector<double> costs(30, 1.0);
  const std::vector<double> halves = {1, 0.5};
  EXPECT_EQ(balance_stages(costs, 2, halves), (std::vector<int>{0, 20, 30}));
  EXPECT_EQ(balance_stages(costs, 4, halves), (std::vector<int>{0, 10, 15, 25, 30}))
      << "two interleaved pieces in each stage";
  EXPECT_EQ(balance_stages(costs, 2, std::vector<double>{3, 3}), balance_stages(costs, 2));
}

TEST(BalanceStagesTest, ASlowStageKeepsAUnit) {
  EXPECT_EQ(balance_stages(std::vector<double>(4, 1.0), 2, std::vector<double>{1, 1e-3}),
            (std::vector<int>{0, 3, 4}));
}

TEST(BalanceStagesTest, FewerUnitsThanStagesAreRefused) {
  EXPECT_THROW(balance_stages(std::vector<double>{1.0, 1.0}, 3), ConfigError);
}

}  // namespace
}  // namespace terrace
