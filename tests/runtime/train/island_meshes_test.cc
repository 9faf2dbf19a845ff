#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "memory/host/thread_plan.h"
#include "parallel/thread_communicator.h"
#include "runtime/step/chunked_model.h"
#include "runtime/train/islands.h"
#include "tests/runtime/temporary_directory.h"

// The islands that --zero-partition and --island-ranks ask for.
namespace terrace {
namespace {

TrainOptions island_flags(std::optional<int> island_ranks = {}) {
  TrainOptions options;
  options.step.zero_partition = ZeroPartition::kHpz;
  options.step.zero_stage = 3;
  options.step.island_ranks = island_ranks;
  return options;
}

int islands_of(const MeshShape& shape, int ranks_on_host) {
  return mesh_in_islands(shape, island_flags(), ranks_on_host).islands;
}

TEST(IslandMeshes, AreMadeOfTheRanksOfAHost) {
  EXPECT_EQ(islands_of({.data = 4}, 2), 2);
  EXPECT_EQ(islands_of({.data = 4}, 4), 1);
  EXPECT_EQ(islands_of({.data = 4, .tensor = 2}, 4), 2);
  EXPECT_EQ(islands_of({.data = 4, .pipeline = 2}, 8), 1);
  EXPECT_EQ(islands_of({.data = 6}, 4), 3);  // islands of 2 lie within hosts of 4
  EXPECT_EQ(mesh_in_islands({.data = 6}, island_flags(3), 1).islands, 2);
  EXPECT_EQ(mesh_in_islands({.data = 6}, TrainOptions(), 2).islands, 1);
}

TEST(IslandMeshes, SayWhatCannotBeDivided) {
  TERRACE_EXPECT_THROW_WITH(islands_of({.data = 4}, 1), ConfigError, "islands of one");
  TERRACE_EXPECT_THROW_WITH(islands_of({.data = 4, .tensor = 2}, 3), ConfigError, "whole groups");
  TERRACE_EXPECT_THROW_WITH(mesh_in_islands({.data = 4}, island_flags(3), 4), ConfigError,
                            "islands of 3");
  TrainOptions stage_2 = island_flags();
  stage_2.step.zero_stage = 2;
  TERRACE_EXPECT_THROW_WITH(mesh_in_islands({.data = 4}, stage_2, 2), ConfigError, "ZeRO stage 2");
}

// Returns the error of ranks with these places on their hosts, or "".
std::string error_of(const std::vector<RanksOnHost>& places, const TrainOptions& options) {
  auto world = make_thread_communicators(static_cast<int>(places.size()), "world");
  std::vector<std::string> errors(places.size());
  std::vector<std::jthread> threads;
  for (std::size_t r = 0; r < places.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        EXPECT_EQ(ranks_of_each_host({world[r].get(), places[r]}, options), places[r].count);
      } catch (const ConfigError& error) {
        errors[r] = error.what();
      }
    });
  }
  threads.clear();
  for (const std::string& error : errors) EXPECT_EQ(error, errors.front());
  return errors.front();
}

TEST(IslandMeshes, NeedHostsThatAreAlike) {
  using testing::HasSubstr;
  EXPECT_EQ(error_of({{2, 0}, {2, 1}, {2, 0}, {2, 1}}, island_flags()), "");
  EXPECT_THAT(error_of({{2, 0}, {2, 1}, {1, 0}}, island_flags()), HasSubstr("rank 2's has 1"));
  EXPECT_THAT(error_of({{2, 0}, {2, 0}, {2, 1}, {2, 1}}, island_flags()),
              HasSubstr("consecutive numbers"));
  EXPECT_EQ(error_of({{2, 0}, {2, 1}, {1, 0}}, island_flags(3)), "");
}

TEST(IslandHomes, HaveTheirOwnShardAndThoseOfOtherIslands) {
  const HomePart home = {.begin = 10, .count = 20, .pieces = 2, .stride = 50};
  EXPECT_EQ(home.element_at(9), 19);
  EXPECT_EQ(home.element_at(10), 60);
  EXPECT_EQ(home.place_of(10), 0);
  EXPECT_EQ(home.place_of(69), 19);
  for (const std::int64_t element : {0, 9, 20, 59, 70, 110}) {
    EXPECT_FALSE(home.place_of(element).has_value()) << element;
  }
  EXPECT_TRUE(home.has_run(60, 70));
  EXPECT_FALSE(home.has_run(19, 21));
  EXPECT_FALSE(home.has_run(10, 70));
}

}  // namespace
}  // namespace terrace
