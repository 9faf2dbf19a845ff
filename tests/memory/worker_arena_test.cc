#include "memory/host/worker_arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "memory/host/cpu_mask.h"

namespace terrace {
namespace {

class WorkerArenaTest : public testing::TestWithParam<int> {};

TEST_P(WorkerArenaTest, RunsEachIndexOnce) {
  WorkerArena arena(GetParam());
  EXPECT_EQ(arena.threads(), GetParam());
  for (const std::int64_t count : {0, 1, 2, 3, 7, 100, 5000}) {
    std::vector<std::atomic<int>> runs(static_cast<std::size_t>(count));
    arena.parallel_for(count, [&](std::int64_t index, int) { runs.at(index).fetch_add(1); });
    for (const auto& run : runs) EXPECT_EQ(run.load(), 1);
  }
}

// Uses plain (not atomic) scratch by worker. ThreadSanitizer notices if two calls share a worker,
// or if the caller's writes before and reads after are not ordered with the bodies.
TEST_P(WorkerArenaTest, WorkersDoNotShareScratch) {
  WorkerArena arena(GetParam());
  std::vector<std::int64_t> input(1000);
  std::vector<std::int64_t> sums(static_cast<std::size_t>(GetParam()));
  for (std::int64_t round = 0; round < 20; ++round) {
    for (std::size_t i = 0; i < input.size(); ++i) input[i] = round + static_cast<std::int64_t>(i);
    arena.parallel_for(1000, [&](std::int64_t index, int worker) {
      sums.at(static_cast<std::size_t>(worker)) += input[static_cast<std::size_t>(index)];
    });
  }
  std::int64_t total = 0;
  for (const std::int64_t sum : sums) total += sum;
  EXPECT_EQ(total, 20 * (999 * 1000 / 2) + 1000 * (19 * 20 / 2));
}

// There is scratch for as many workers as the smallest of three numbers: the arena's threads,
// `workers_max` and the indices. That is enough, whichever threads come.
TEST_P(WorkerArenaTest, WorkersAreNumberedUpToTheirLimit) {
  WorkerArena arena(GetParam());
  for (const int workers_max : {1, 2, 4, 100}) {
    for (const std::int64_t count : {1, 2, 3, 200}) {
      const auto most = std::min<std::int64_t>({GetParam(), workers_max, count});
      std::vector<std::int64_t> runs(static_cast<std::size_t>(most));
      arena.parallel_for(count, workers_max, [&](std::int64_t, int worker) {
        ++runs.at(static_cast<std::size_t>(worker));
      });
      EXPECT_EQ(std::accumulate(runs.begin(), runs.end(), std::int64_t{0}), count);
    }
  }
}

// No body returns before all of them have begun. That takes as many threads as were asked for, even
// where the machine has fewer cores.
TEST_P(WorkerArenaTest, ReallyUsesAllThreads) {
  WorkerArena arena(GetParam());
  std::atomic<int> begun{0};
  std::atomic<int> met{0};
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  arena.parallel_for(GetParam(), [&](std::int64_t, int) {
    begun.fetch_add(1);
    while (begun.load() < GetParam() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    if (begun.load() == GetParam()) met.fetch_add(1);
  });
  EXPECT_EQ(met.load(), GetParam());
}

TEST_P(WorkerArenaTest, RethrowsAndStaysUsable) {
  WorkerArena arena(GetParam());
  const auto fail_at_7 = [](std::int64_t index, int) {
    if (index == 7) throw std::runtime_error("seven");
  };
  EXPECT_THROW(arena.parallel_for(50, fail_at_7), std::runtime_error);
  std::atomic<int> runs{0};
  arena.parallel_for(50, [&](std::int64_t, int) { runs.fetch_add(1); });
  EXPECT_EQ(runs.load(), 50);
}

TEST_P(WorkerArenaTest, KeepsItsThreadsOnTheProcessorsNamed) {
  const std::vector<int> before = cpus_of_thread();
  WorkerArena arena(GetParam(), {before.back()});
  WorkerArena elsewhere(GetParam(), before);
  for (int round = 0; round < 3; ++round) {
    std::atomic<int> astray{0};
    arena.parallel_for(GetParam(), [&](std::int64_t, int) {
      if (GetParam() > 1 && cpus_of_thread() != std::vector<int>{before.back()}) ++astray;
    });
    elsewhere.parallel_for(GetParam(), [&](std::int64_t, int) {
      if (GetParam() > 1 && cpus_of_thread() != before) ++astray;
    });
    EXPECT_EQ(astray.load(), 0);
  }
  EXPECT_EQ(cpus_of_thread(), before);
}

INSTANTIATE_TEST_SUITE_P(Threads, WorkerArenaTest, testing::Values(1, 2, 3, 5));

TEST(WorkerArenaLimitTest, ArenasOfDifferentSizesDoNotLimitEachOther) {
  WorkerArena small(1);
  WorkerArena pair(2);
  WorkerArena large(4);
  std::atomic<int> begun{0};
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  large.parallel_for(4, [&](std::int64_t, int) {
    begun.fetch_add(1);
    while (begun.load() < 4 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    EXPECT_EQ(begun.load(), 4);
  });
}

TEST(WorkerArenaLimitTest, SeveralCallersEachWithTheirOwn) {
  std::vector<std::thread> callers;
  std::vector<std::int64_t> sums(3);
  for (std::size_t caller = 0; caller < sums.size(); ++caller) {
    callers.emplace_back([&sums, caller] {
      WorkerArena arena(2);
      std::vector<std::int64_t> by_worker(2);
      for (int round = 0; round < 50; ++round) {
        arena.parallel_for(64, [&](std::int64_t index, int worker) {
          by_worker.at(static_cast<std::size_t>(worker)) += index;
        });
      }
      sums[caller] = by_worker[0] + by_worker[1];
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const std::int64_t sum : sums) EXPECT_EQ(sum, 50 * 63 * 64 / 2);
}

// Returns the number of threads of this process.
std::ptrdiff_t thread_count() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

TEST(WorkerArenaLimitTest, ManyInTurnLeaveNoThreads) {
  const std::ptrdiff_t before = thread_count();
  for (int round = 0; round < 2000; ++round) {
    WorkerArena arena(2 + round % 2);
    arena.parallel_for(16, [](std::int64_t, int) {});
  }
  EXPECT_LE(thread_count(), before + 8);
}

// The same holds where an arena is reused that another caller had before.
TEST(WorkerArenaLimitTest, LoopsRoundAsTheirCallerDoes) {
  for (const int rounding : {FE_UPWARD, FE_TONEAREST, FE_DOWNWARD}) {
    std::fesetround(rounding);
    WorkerArena arena(2);
    arena.parallel_for(64,
                       [rounding](std::int64_t, int) { EXPECT_EQ(std::fegetround(), rounding); });
  }
  std::fesetround(FE_TONEAREST);
}

}  // namespace
}  // namespace terrace
