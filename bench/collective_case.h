#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "bench/bench.h"
#include "bench/collective_plan.h"
#include "memory/host/host_memory.h"
#include "parallel/communicator.h"

// The collectives that bench collective measures. Columns and factors are as in nccl-tests. `size`
// is all the data of the call (for all_gather and reduce_scatter the whole buffer), and algbw =
// size / time. busbw is algbw times the part that a rank must send, so that it can be compared with
// the speed of a link or a copy, whatever the number of ranks.
namespace terrace {

struct CollectiveCase {
  CollectiveKind kind;
  std::string_view name;
  std::string_view bus_factor_is;  // in terms of the number of ranks, n
  double (*bus_factor)(double ranks);
};

// Returns all of them.
std::span<const CollectiveCase> collective_cases();

struct MeasuredCollective {
  const CollectiveCase* what = nullptr;
  DType dtype = DType::kF32;
  std::size_t bytes = 0;
  int iterations = 1;
};

// The buffers of one rank. They are touched, and never zero.
class RankBuffers {
 public:
  explicit RankBuffers(std::size_t bytes);

  void call(Communicator& ranks, const MeasuredCollective& measured);
  std::span<std::byte> source(std::size_t bytes) { return source_.bytes().first(bytes); }
  std::span<std::byte> target(std::size_t bytes) { return target_.bytes().first(bytes); }

 private:
  static TensorView view_of(HostMemory& memory, const MeasuredCollective& measured, int parts);

  HostMemory source_;
  HostMemory target_;
};

// Returns the seconds of one `body`, from when all ranks begin until all are done.
double seconds_of_calls(Communicator& ranks, int iterations, const std::function<void()>& body);

// Returns the wanted measurements of a size: every collective in one type, then in the other. Their
// names begin with `prefix`, which says how the ranks communicate.
std::vector<MeasuredCollective> measured_collectives(std::string_view prefix,
                                                     const CollectivePlan& plan, std::size_t bytes);
// Returns the sizes of which some measurement is wanted.
std::vector<std::size_t> wanted_collective_sizes(std::string_view prefix,
                                                 const CollectivePlan& plan);
std::vector<std::string> collective_names(std::string_view prefix, const CollectivePlan& plan);

// The rates of a collective and of its limit.
struct RatesBesideLimit {
  const Samples& value;
  const Samples& limit;
  std::string limit_is;  // in words
};
BenchResult collective_result(std::string_view prefix, const MeasuredCollective& measured,
                              int ranks, const RatesBesideLimit& rates);

// Returns busbw in GB/s.
double bus_rate(const MeasuredCollective& measured, int ranks, double seconds);

// Returns about how many measurements there are: collectives of each type, and the ways that are
// their limits.
inline std::size_t collective_measurements(std::size_t sizes) { return 24 * sizes; }

}  // namespace terrace
