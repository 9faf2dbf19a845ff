#include <fmt/format.h>

#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/half.h"
#include "parallel/mpi/mpi_session.h"

// Makes calls of one collective as a rank of an MPI job, so that a script can count the bytes that
// cross a network. Checks the values that it gets.
namespace terrace {
namespace {

template <typename T>
T number(int value);
template <>
float number<float>(int value) {
  return static_cast<float>(value);
}
template <>
Bf16 number<Bf16>(int value) {
  return to_bf16_nearest_even(static_cast<float>(value));
}
float as_float(float value) { return value; }
float as_float(Bf16 value) { return to_float(value); }

// Each rank's data is its number, counted from 1. Returns whether all values are right.
template <typename T>
bool call(Communicator& ranks, const std::string& kind, std::size_t elements) {
  const auto count = static_cast<std::size_t>(ranks.size());
  const T own = number<T>(ranks.rank() + 1);
  const int sum = ranks.size() * (ranks.size() + 1) / 2;
  std::vector<T> whole(elements, own);
  std::vector<T> part(elements / count, own);
  const auto all_are = [](std::span<const T> values, int expected) {
    for (const T value : values) {
      if (as_float(value) != static_cast<float>(expected)) return false;
    }
    return true;
  };
  if (kind == "all_gather") {
    ranks.all_gather(view(std::span(whole)), view(std::span(part)), {});
    for (std::size_t rank = 0; rank < count; ++rank) {
      const auto of_rank = std::span<const T>(whole).subspan(rank * part.size(), part.size());
      if (!all_are(of_rank, static_cast<int>(rank) + 1)) return false;
    }
    return true;
  }
  if (kind == "reduce_scatter") {
    ranks.reduce_scatter(view(std::span(part)), view(std::span(whole)), ReduceOp::kSum, {});
    return all_are(part, sum);
  }
  ranks.all_reduce(view(std::span(whole)), ReduceOp::kSum, {});
  return all_are(whole, sum);
}

HierarchicalUse use_of(const std::string& name) {
  if (name == "on") return HierarchicalUse::kOn;
  return name == "off" ? HierarchicalUse::kOff : HierarchicalUse::kAuto;
}

}  // namespace
}  // namespace terrace

// crossing_bytes all_gather|reduce_scatter|all_reduce fp32|bf16 MIB CALLS on|off|auto
int main(int argc, char** argv) {
  using namespace terrace;
  if (argc != 6) return 2;
  const bool is_wide = std::string(argv[2]) == "fp32";
  const std::size_t elements = static_cast<std::size_t>(std::atoi(argv[3])) * kMiB /
                               (is_wide ? sizeof(float) : sizeof(Bf16));
  MpiSession session;
  bool is_right = true;
  {
    const auto ranks = session.make_world("ranks", {.hierarchical = use_of(argv[5])});
    for (int i = 0; i < std::atoi(argv[4]); ++i) {
      const bool is_call_right =
          is_wide ? call<float>(*ranks, argv[1], elements) : call<Bf16>(*ranks, argv[1], elements);
      is_right = is_right && is_call_right;
    }
  }
  if (!is_right) fmt::print("rank {}: wrong values\n", session.rank());
  return session.end(is_right ? 0 : 1);
}
