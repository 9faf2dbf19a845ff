#include "tests/conformance/communicator_conformance.h"

#include <gmock/gmock.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/half.h"

namespace terrace {
namespace {

using testing::HasSubstr;

// Counts around the pieces that implementations may cut: nothing, one, odd, lines, blocks,
// megabytes.
constexpr auto kCounts =
    std::to_array<std::size_t>({0, 1, 3, 63, 64, 65, 1023, 1025, 4096, 140009});

// Returns bits that are cheap to compute and differ for every rank, index and seed (the finaliser
// of splitmix64).
std::uint32_t bits_of(int rank, std::size_t i, std::uint64_t seed) {
  std::uint64_t x =
      (i + 1) * 0x9e3779b97f4a7c15U + static_cast<std::uint64_t>(rank) * 0x10001U + (seed << 40);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return static_cast<std::uint32_t>(x >> 32);
}

// Returns a number whose sums over ranks round differently in every order.
float number_of(int rank, std::size_t i, std::uint64_t seed) {
  constexpr auto kScales =
      std::to_array<float>({0.0625F, 0.125F, 0.25F, 0.5F, -0.0625F, -1.0F, 2.0F, -4.0F});
  const std::uint32_t bits = bits_of(rank, i, seed);
  return (static_cast<float>(bits >> 8) * 0x1p-24F + 0.001F) * kScales[bits & 7U];
}

template <typename T>
T element_of(int rank, std::size_t i, std::uint64_t seed);
template <>
float element_of<float>(int rank, std::size_t i, std::uint64_t seed) {
  return number_of(rank, i, seed);
}
template <>
double element_of<double>(int rank, std::size_t i, std::uint64_t seed) {
  return static_cast<double>(number_of(rank, i, seed)) / 3;
}
template <>
Bf16 element_of<Bf16>(int rank, std::size_t i, std::uint64_t seed) {
  return to_bf16_nearest_even(number_of(rank, i, seed));
}
template <>
Fp16 element_of<Fp16>(int rank, std::size_t i, std::uint64_t seed) {
  return to_fp16_nearest_even(number_of(rank, i, seed));
}
template <>
std::int32_t element_of<std::int32_t>(int rank, std::size_t i, std::uint64_t seed) {
  return static_cast<std::int32_t>(bits_of(rank, i, seed));
}
template <>
std::byte element_of<std::byte>(int rank, std::size_t i, std::uint64_t seed) {
  return static_cast<std::byte>(bits_of(rank, i, seed));
}

// Follows the contract word by word: reduces in rank order, narrow types in fp32, rounded once.
template <typename T>
T reduced(int ranks, std::size_t i, std::uint64_t seed, ReduceOp op) {
  const auto join = [op](auto a, auto b) { return op == ReduceOp::kSum ? a + b : (b > a ? b : a); };
  if constexpr (std::is_same_v<T, Bf16> || std::is_same_v<T, Fp16>) {
    float all = to_float(element_of<T>(0, i, seed));
    for (int rank = 1; rank < ranks; ++rank) {
      all = join(all, to_float(element_of<T>(rank, i, seed)));
    }
    if constexpr (std::is_same_v<T, Bf16>)
      return to_bf16_nearest_even(all);
    else
      return to_fp16_nearest_even(all);
  } else if constexpr (std::is_same_v<T, std::int32_t>) {
    std::int64_t all = element_of<T>(0, i, seed);
    for (int rank = 1; rank < ranks; ++rank) {
      all = join(all, std::int64_t{element_of<T>(rank, i, seed)});
    }
    return static_cast<std::int32_t>(all);  // the conversion wraps
  } else {
    T all = element_of<T>(0, i, seed);
    for (int rank = 1; rank < ranks; ++rank) all = join(all, element_of<T>(rank, i, seed));
    return all;
  }
}

template <typename T>
std::vector<T> elements_of(int rank, std::size_t count, std::uint64_t seed = 1) {
  std::vector<T> elements(count);
  for (std::size_t i = 0; i < count; ++i) elements[i] = element_of<T>(rank, i, seed);
  return elements;
}

template <typename T>
std::vector<T> all_reduced(int ranks, std::size_t count, ReduceOp op, std::uint64_t seed = 1) {
  std::vector<T> elements(count);
  for (std::size_t i = 0; i < count; ++i) elements[i] = reduced<T>(ranks, i, seed, op);
  return elements;
}

template <typename T>
bool same_bits(std::span<const T> a, std::span<const T> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}
template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return same_bits(std::span<const T>(a), std::span<const T>(b));
}

template <typename T>
std::span<T> part_of(std::vector<T>& whole, int part, int parts) {
  const std::size_t count = whole.size() / static_cast<std::size_t>(parts);
  return std::span<T>(whole).subspan(count * static_cast<std::size_t>(part), count);
}

template <typename T>
void expect_all_reduces(Communicator& communicator) {
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
    for (const std::size_t count : kCounts) {
      std::vector<T> data = elements_of<T>(communicator.rank(), count);
      communicator.all_reduce(view(std::span(data)), op, {});
      EXPECT_TRUE(same_bits(data, all_reduced<T>(communicator.size(), count, op)))
          << count << " " << name_of(DTypeOf<T>::value);
    }
  }
}

TEST_P(CommunicatorConformanceTest, AllReducesInRankOrder) {
  run([](Communicator& communicator) {
    expect_all_reduces<float>(communicator);
    expect_all_reduces<Bf16>(communicator);
    expect_all_reduces<Fp16>(communicator);
    expect_all_reduces<double>(communicator);
    expect_all_reduces<std::int32_t>(communicator);
  });
}

// The data is larger than any piece, also than any piece sent between hosts.
TEST_P(CommunicatorConformanceTest, MovesManyPieces) {
  run([](Communicator& communicator) {
    constexpr std::size_t kCount = 600'011;
    const auto ranks = static_cast<std::size_t>(communicator.size());
    std::vector<float> data = elements_of<float>(communicator.rank(), kCount * ranks);
    communicator.all_reduce(view(std::span(data)), ReduceOp::kSum, {});
    const auto sums = all_reduced<float>(communicator.size(), kCount * ranks, ReduceOp::kSum);
    EXPECT_TRUE(same_bits(data, sums));
    std::vector<float> own = elements_of<float>(communicator.rank(), kCount);
    communicator.all_gather(view(std::span(data)), view(std::span(own)), {});
    std::vector<Bf16> halves = elements_of<Bf16>(communicator.rank(), kCount * ranks);
    communicator.all_reduce(view(std::span(halves)), ReduceOp::kMax, {});
    EXPECT_TRUE(
        same_bits(halves, all_reduced<Bf16>(communicator.size(), kCount * ranks, ReduceOp::kMax)));
    std::vector<Fp16> narrow = elements_of<Fp16>(communicator.rank(), kCount * ranks);
    communicator.all_reduce(view(std::span(narrow)), ReduceOp::kSum, {});
    EXPECT_TRUE(
        same_bits(narrow, all_reduced<Fp16>(communicator.size(), kCount * ranks, ReduceOp::kSum)));
    halves = elements_of<Bf16>(communicator.rank(), kCount * ranks);
    const TensorView part = view(part_of(halves, communicator.rank(), communicator.size()));
    communicator.reduce_scatter(part, view(std::span(halves)), ReduceOp::kSum, {});
    std::vector<Bf16> sums_of_halves =
        all_reduced<Bf16>(communicator.size(), kCount * ranks, ReduceOp::kSum);
    EXPECT_TRUE(same_bits<Bf16>(part_of(halves, communicator.rank(), communicator.size()),
                                part_of(sums_of_halves, communicator.rank(), communicator.size())));
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const std::vector<float> expected = elements_of<float>(static_cast<int>(rank), kCount);
      EXPECT_TRUE(
          same_bits<float>(std::span(data).subspan(rank * kCount, kCount), std::span(expected)))
          << rank;
    }
  });
}

template <typename T>
void expect_reduce_scatters(Communicator& communicator, bool in_place) {
  const int ranks = communicator.size();
  for (const std::size_t count : kCounts) {
    std::vector<T> source =
        elements_of<T>(communicator.rank(), count * static_cast<std::size_t>(ranks));
    std::vector<T> expected =
        all_reduced<T>(ranks, count * static_cast<std::size_t>(ranks), ReduceOp::kSum);
    std::vector<T> apart(count);
    const std::span<T> own = part_of(source, communicator.rank(), ranks);
    const std::span<T> target = in_place ? own : std::span<T>(apart);
    communicator.reduce_scatter(view(target), view(std::span(source)), ReduceOp::kSum, {});
    EXPECT_TRUE(same_bits<T>(target, part_of(expected, communicator.rank(), ranks))) << count;
  }
}

TEST_P(CommunicatorConformanceTest, ReduceScattersAlsoIntoItsOwnPart) {
  run([](Communicator& communicator) {
    for (const bool in_place : {false, true}) {
      expect_reduce_scatters<float>(communicator, in_place);
      expect_reduce_scatters<Bf16>(communicator, in_place);
      expect_reduce_scatters<Fp16>(communicator, in_place);
    }
  });
}

template <typename T>
void expect_all_gathers(Communicator& communicator, bool in_place) {
  const int ranks = communicator.size();
  for (const std::size_t count : kCounts) {
    std::vector<T> source = elements_of<T>(communicator.rank(), count);
    std::vector<T> target(count * static_cast<std::size_t>(ranks));
    const std::span<T> own = part_of(target, communicator.rank(), ranks);
    if (in_place) std::copy(source.begin(), source.end(), own.begin());
    communicator.all_gather(view(std::span(target)), view(in_place ? own : std::span<T>(source)),
                            {});
    for (int rank = 0; rank < ranks; ++rank) {
      const std::vector<T> expected = elements_of<T>(rank, count);
      EXPECT_TRUE(same_bits<T>(part_of(target, rank, ranks), expected)) << count << " of " << rank;
    }
  }
}

TEST_P(CommunicatorConformanceTest, AllGathersAlsoFromItsOwnPart) {
  run([](Communicator& communicator) {
    for (const bool in_place : {false, true}) {
      expect_all_gathers<float>(communicator, in_place);
      expect_all_gathers<std::byte>(communicator, in_place);
      expect_all_gathers<double>(communicator, in_place);
    }
  });
}

TEST_P(CommunicatorConformanceTest, AllReduceIsReduceScatterAndAllGather) {
  run([](Communicator& communicator) {
    const auto ranks = static_cast<std::size_t>(communicator.size());
    std::vector<Bf16> whole = elements_of<Bf16>(communicator.rank(), 5003 * ranks);
    std::vector<Bf16> parts = whole;
    communicator.all_reduce(view(std::span(whole)), ReduceOp::kSum, {});
    const TensorView own = view(part_of(parts, communicator.rank(), communicator.size()));
    communicator.reduce_scatter(own, view(std::span(parts)), ReduceOp::kSum, {});
    communicator.all_gather(view(std::span(parts)), own, {});
    EXPECT_TRUE(same_bits(whole, parts));
  });
}

TEST_P(CommunicatorConformanceTest, BroadcastsFromEveryRoot) {
  run([](Communicator& communicator) {
    for (int root = 0; root < communicator.size(); ++root) {
      for (const std::size_t count : kCounts) {
        std::vector<std::byte> data = elements_of<std::byte>(communicator.rank(), count);
        communicator.broadcast(view(std::span(data)), root, {});
        EXPECT_TRUE(same_bits(data, elements_of<std::byte>(root, count))) << count;
      }
    }
  });
}

TEST_P(CommunicatorConformanceTest, AllToAllTransposesTheParts) {
  run([](Communicator& communicator) {
    const int ranks = communicator.size();
    for (const std::size_t count : kCounts) {
      const std::size_t whole = count * static_cast<std::size_t>(ranks);
      std::vector<std::int32_t> source = elements_of<std::int32_t>(communicator.rank(), whole);
      std::vector<std::int32_t> target(whole);
      communicator.all_to_all(view(std::span(target)), view(std::span(source)), {});
      for (int rank = 0; rank < ranks; ++rank) {
        std::vector<std::int32_t> theirs = elements_of<std::int32_t>(rank, whole);
        EXPECT_TRUE(same_bits<std::int32_t>(part_of(target, rank, ranks),
                                            part_of(theirs, communicator.rank(), ranks)));
      }
    }
  });
}

// Sends around a ring and back: even ranks send first.
TEST_P(CommunicatorConformanceTest, SendsToNeighbours) {
  run([](Communicator& communicator) {
    const int size = communicator.size();
    if (size == 1) return;
    const int rank = communicator.rank();
    const int next = (rank + 1) % size;
    const int previous = (rank + size - 1) % size;
    for (const std::size_t count : kCounts) {
      std::vector<float> mine = elements_of<float>(rank, count, count);
      std::vector<float> received(count);
      const auto send = [&] { communicator.send(view(std::span(mine)), next, {}); };
      const auto receive = [&] { communicator.recv(view(std::span(received)), previous, {}); };
      if (rank == 0) {
        send();
        receive();
      } else {
        receive();
        send();
      }
      EXPECT_TRUE(same_bits(received, elements_of<float>(previous, count, count)));
    }
  });
}

// A rank that is late must not see the buffers of the next call, and a rank that is early must
// wait.
TEST_P(CommunicatorConformanceTest, BuffersAreFreeWhenACallReturns) {
  run([](Communicator& communicator) {
    for (std::uint64_t round = 0; round < 200; ++round) {
      const bool is_large = round % 4 == 0;
      const std::size_t count =
          is_large ? 20'011 * static_cast<std::size_t>(communicator.size()) : 777;
      std::vector<float> data = elements_of<float>(communicator.rank(), count, round);
      if ((round + static_cast<std::uint64_t>(communicator.rank())) % 5 == 0) {
        std::this_thread::yield();
      }
      if (is_large) {
        const TensorView own = view(part_of(data, communicator.rank(), communicator.size()));
        communicator.reduce_scatter(own, view(std::span(data)), ReduceOp::kSum, {});
        communicator.all_gather(view(std::span(data)), own, {});
      } else {
        communicator.all_reduce(view(std::span(data)), ReduceOp::kSum, {});
      }
      EXPECT_TRUE(
          same_bits(data, all_reduced<float>(communicator.size(), count, ReduceOp::kSum, round)));
      std::fill(data.begin(), data.end(), std::numeric_limits<float>::quiet_NaN());
    }
  });
}

TEST_P(CommunicatorConformanceTest, MaxIsNanWhereARankHasNan) {
  run([](Communicator& communicator) {
    for (int nan_rank = 0; nan_rank < communicator.size(); ++nan_rank) {
      std::vector<float> data(5, static_cast<float>(communicator.rank()));
      if (communicator.rank() == nan_rank) data[2] = std::numeric_limits<float>::quiet_NaN();
      communicator.all_reduce(view(std::span(data)), ReduceOp::kMax, {});
      EXPECT_EQ(data[1], static_cast<float>(communicator.size() - 1));
      EXPECT_TRUE(std::isnan(data[2]));
    }
  });
}

TEST_P(CommunicatorConformanceTest, CountsTheBytesItSends) {
  run([](Communicator& communicator) {
    const auto ranks = static_cast<std::uint64_t>(communicator.size());
    std::vector<float> whole(ranks * 640);
    std::vector<float> part(640);
    std::uint64_t expected = 0;
    EXPECT_EQ(communicator.bytes_sent(), expected);
    communicator.reduce_scatter(view(std::span(part)), view(std::span(whole)), ReduceOp::kSum, {});
    EXPECT_EQ(communicator.bytes_sent(), expected += (ranks - 1) * 640 * 4);
    communicator.all_gather(view(std::span(whole)), view(std::span(part)), {});
    EXPECT_EQ(communicator.bytes_sent(), expected += (ranks - 1) * 640 * 4);
    communicator.all_reduce(view(std::span(whole)), ReduceOp::kSum, {});
    EXPECT_EQ(communicator.bytes_sent(), expected += 2 * (ranks - 1) * 640 * 4);
    communicator.broadcast(view(std::span(part)), 0, {});
    EXPECT_EQ(communicator.bytes_sent(),
              expected += communicator.rank() == 0 ? (ranks - 1) * 640 * 4 : 0);
  });
}

// Splits into even and odd ranks, each ordered backwards.
TEST_P(CommunicatorConformanceTest, SplitsByColorAndOrdersByKey) {
  run([](Communicator& communicator) {
    const int color = communicator.rank() % 2;
    const auto half = communicator.split(color, -communicator.rank(), "half");
    EXPECT_EQ(half->name(), "half");
    std::vector<std::int32_t> ranks(static_cast<std::size_t>(half->size()));
    std::vector<std::int32_t> mine = {communicator.rank()};
    half->all_gather(view(std::span(ranks)), view(std::span(mine)), {});
    std::vector<std::int32_t> expected;
    for (int rank = communicator.size() - 1; rank >= 0; --rank) {
      if (rank % 2 == color) expected.push_back(rank);
    }
    EXPECT_EQ(ranks, expected);
    EXPECT_EQ(ranks[static_cast<std::size_t>(half->rank())], communicator.rank());
  });
}

TEST_P(CommunicatorConformanceTest, CommunicatorsWorkAtTheSameTime) {
  run([](Communicator& communicator) {
    const auto other = communicator.split(0, communicator.rank(), "other");
    const auto work = [](Communicator& own, std::uint64_t seed) {
      for (std::uint64_t round = 0; round < 60; ++round) {
        const std::size_t count =
            round == 20 ? 270'001 * static_cast<std::size_t>(own.size()) : 3001;
        std::vector<float> data = elements_of<float>(own.rank(), count, seed + round);
        own.all_reduce(view(std::span(data)), ReduceOp::kSum, {});
        EXPECT_TRUE(
            same_bits(data, all_reduced<float>(own.size(), count, ReduceOp::kSum, seed + round)));
      }
    };
    std::jthread second([&] { work(*other, 1000); });
    work(communicator, 2000);
  });
}

// Calls `body`, which must throw CommError, and returns the error's text.
std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const CommError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no CommError";
  return {};
}

constexpr CommunicatorOptions kShort = {.timeout = std::chrono::seconds(1)};

TEST_P(CommunicatorConformanceTest, TimeoutNamesTheCallAndWhoDidNotArrive) {
  if (GetParam().ranks == 1) return;
  runner_->run(kShort, [this](Communicator& communicator) {
    runner_->meet();  // so that no rank is late because it began late
    const int last = communicator.size() - 1;
    if (communicator.rank() != last) {
      std::vector<float> data(96);
      const std::string what =
          error_of([&] { communicator.all_reduce(view(std::span(data)), ReduceOp::kSum, {}); });
      EXPECT_THAT(what, HasSubstr("'world'"));
      EXPECT_THAT(what, HasSubstr("all_reduce (sum) of 96 fp32"));
      EXPECT_THAT(what, HasSubstr("rank " + std::to_string(last) + " did not arrive"));
    }
    runner_->meet();
    // The rank that comes late gets the same error.
    if (communicator.rank() == last) {
      std::vector<float> data(96);
      EXPECT_THAT(
          error_of([&] { communicator.all_reduce(view(std::span(data)), ReduceOp::kSum, {}); }),
          HasSubstr("rank " + std::to_string(last) + " did not arrive"));
    }
    runner_->meet();
  });
}

TEST_P(CommunicatorConformanceTest, RecvTimesOutWhenNobodySends) {
  if (GetParam().ranks == 1) return;
  runner_->run(kShort, [this](Communicator& communicator) {
    if (communicator.rank() == 0) {
      std::vector<float> data(5);
      const std::string what = error_of([&] { communicator.recv(view(std::span(data)), 1, {}); });
      EXPECT_THAT(what, HasSubstr("recv of 5 fp32 from rank 1"));
      EXPECT_THAT(what, HasSubstr("rank 1 did not arrive"));
    }
    runner_->meet();
  });
}

// The abort also ends calls on a communicator that has nothing to do with the aborted one.
TEST_P(CommunicatorConformanceTest, AbortEndsEveryCallOfEveryRank) {
  run([this](Communicator& communicator) {
    const auto half = communicator.split(communicator.rank() % 2, 0, "half");
    std::vector<float> data(10);
    std::vector<float> large(2 * 1024 * 1024);
    std::jthread saboteur;
    if (communicator.rank() == communicator.size() - 1) {
      saboteur = std::jthread([&half] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        half->abort("the disk is full");
      });
    }
    EXPECT_THAT(error_of([&] {
                  for (;;) {
                    communicator.all_reduce(view(std::span(data)), ReduceOp::kSum, {});
                    communicator.broadcast(view(std::span(large)), 0, {});
                  }
                }),
                HasSubstr("the disk is full"));
    EXPECT_THAT(error_of([&] { half->broadcast(view(std::span(data)), 0, {}); }),
                HasSubstr("the disk is full"));
    EXPECT_THAT(error_of([&] { (void)half->split(0, 0, "third"); }), HasSubstr("the disk is full"));
    runner_->meet();
  });
}

// An abort may come when some ranks have done their part of a call and others have not.
TEST_P(CommunicatorConformanceTest, ACallThatReturnsIsWhole) {
  constexpr int kAborts = 20;
  constexpr std::size_t kPart = 3000;
  for (int abort = 0; abort < kAborts; ++abort) {
    run([this, abort](Communicator& communicator) {
      std::jthread saboteur;
      if (communicator.rank() == communicator.size() - 1) {
        saboteur = std::jthread([&communicator, abort] {
          std::this_thread::sleep_for(std::chrono::microseconds(500 + 37 * abort));
          communicator.abort("the disk is full");
        });
      }
      std::vector<float> part(kPart);
      std::vector<float> all(kPart * static_cast<std::size_t>(communicator.size()));
      int wrong = 0;
      const std::string what = error_of([&] {
        for (float call = 1;; ++call) {
          std::ranges::fill(part, call);
          communicator.all_gather(view(std::span(all)), view(std::span(part)), {});
          wrong += std::ranges::count(all, call) == std::ssize(all) ? 0 : 1;
        }
      });
      EXPECT_THAT(what, HasSubstr("the disk is full"));
      EXPECT_EQ(wrong, 0) << "in abort " << abort;
      runner_->meet();
    });
  }
}

// A rank that makes no call can ask whether there was an abort.
TEST_P(CommunicatorConformanceTest, AnAbortIsKnownWithoutACall) {
  run([this](Communicator& communicator) {
    const auto half = communicator.split(communicator.rank() % 2, 0, "half");
    EXPECT_EQ(half->abort_reason(), std::nullopt);
    EXPECT_NO_THROW(communicator.throw_if_aborted());
    runner_->meet();
    if (communicator.rank() == communicator.size() - 1) half->abort("the disk is full");
    for (int looks = 0; !communicator.abort_reason() && looks < 10000; ++looks) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(communicator.abort_reason(), "the disk is full");
    const std::string what = error_of([&] { half->throw_if_aborted(); });
    EXPECT_THAT(what, HasSubstr("communicator 'half'"));
    EXPECT_THAT(what, HasSubstr("the disk is full"));
    runner_->meet();
  });
}

TEST_P(CommunicatorConformanceTest, DifferentCallsAreNamed) {
  if (GetParam().ranks == 1) return;
  run([this](Communicator& communicator) {
    const bool is_last = communicator.rank() == communicator.size() - 1;
    std::vector<float> data(is_last ? 64 : 128);
    const std::string what =
        error_of([&] { communicator.all_reduce(view(std::span(data)), ReduceOp::kSum, {}); });
    EXPECT_THAT(what, HasSubstr("different calls"));
    EXPECT_THAT(what, HasSubstr("rank 0 calls all_reduce (sum) of 128 fp32"));
    EXPECT_THAT(what, HasSubstr("all_reduce (sum) of 64 fp32"));
    runner_->meet();
  });
}

TEST_P(CommunicatorConformanceTest, DifferentSizesOfAPairAreNamed) {
  if (GetParam().ranks == 1) return;
  run([this](Communicator& communicator) {
    std::vector<float> data(128);
    if (communicator.rank() == 0) {
      EXPECT_THAT(error_of([&] {
                    communicator.send(view(std::span(data)), 1, {});
                    for (;;) communicator.all_reduce(view(std::span(data)), ReduceOp::kSum, {});
                  }),
                  HasSubstr("different calls"));
    } else if (communicator.rank() == 1) {
      EXPECT_THAT(
          error_of([&] { communicator.recv(view(std::span(data).first(64)), 0, {}); }),
          HasSubstr(
              "rank 0 calls send of 128 fp32 to rank 1, rank 1 calls recv of 64 fp32 from rank 0"));
    }
    runner_->meet();
  });
}

}  // namespace
}  // namespace terrace
