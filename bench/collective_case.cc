#include "bench/collective_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/bytes.h"
#include "base/clock.h"
#include "bench/bench_only.h"

namespace terrace {
namespace {

double part_of_others(double ranks) { return (ranks - 1) / ranks; }

constexpr auto kCases = std::to_array<CollectiveCase>(
    {{CollectiveKind::kAllReduce, "all_reduce", "2(n-1)/n",
      [](double n) { return 2 * part_of_others(n); }},
     {CollectiveKind::kReduceScatter, "reduce_scatter", "(n-1)/n", part_of_others},
     {CollectiveKind::kAllGather, "all_gather", "(n-1)/n", part_of_others},
     {CollectiveKind::kAllToAll, "all_to_all", "(n-1)/n", part_of_others},
     {CollectiveKind::kBroadcast, "broadcast", "1", [](double) { return 1.0; }}});

// Names a size without the bytes that whole lines for every rank have added, less than a KiB.
std::string size_name(std::size_t bytes) {
  if (bytes < kKiB) return fmt::format("{}b", bytes);
  const std::size_t kib = bytes / kKiB;
  constexpr std::size_t kOfMiB = kMiB / kKiB;
  return kib % kOfMiB == 0 ? fmt::format("{}mib", kib / kOfMiB) : fmt::format("{}kib", kib);
}

std::string name_of(std::string_view prefix, const MeasuredCollective& measured) {
  return fmt::format("{}_{}_{}_{}", prefix, measured.what->name, name_of(measured.dtype),
                     size_name(measured.bytes));
}

}  // namespace

std::span<const CollectiveCase> collective_cases() { return kCases; }

RankBuffers::RankBuffers(std::size_t bytes)
    : source_(bytes, HostMemoryOptions{}), target_(bytes, HostMemoryOptions{}) {
  const auto fill = [](std::span<std::byte> memory) {
    std::fill_n(reinterpret_cast<float*>(memory.data()), memory.size() / sizeof(float), 1.25F);
  };
  fill(source_.bytes());
  fill(target_.bytes());
}

void RankBuffers::call(Communicator& ranks, const MeasuredCollective& measured) {
  const TensorView source = view_of(source_, measured, 1);
  const TensorView target = view_of(target_, measured, 1);
  switch (measured.what->kind) {
    case CollectiveKind::kAllReduce:
      return ranks.all_reduce(target, ReduceOp::kSum, {});
    case CollectiveKind::kReduceScatter:
      return ranks.reduce_scatter(view_of(target_, measured, ranks.size()), source, ReduceOp::kSum,
                                  {});
    case CollectiveKind::kAllGather:
      return ranks.all_gather(target, view_of(source_, measured, ranks.size()), {});
    case CollectiveKind::kAllToAll:
      return ranks.all_to_all(target, source, {});
    default:
      return ranks.broadcast(target, 0, {});
  }
}

TensorView RankBuffers::view_of(HostMemory& memory, const MeasuredCollective& measured, int parts) {
  const std::size_t elements = measured.bytes / size_of(measured.dtype);
  return view(memory.bytes().data(), measured.dtype,
              static_cast<std::int64_t>(elements / static_cast<std::size_t>(parts)));
}

double seconds_of_calls(Communicator& ranks, int iterations, const std::function<void()>& body) {
  const SystemClock clock;
  const auto meet = [&] { ranks.all_reduce(view(std::span<float>()), ReduceOp::kMax, {}); };
  meet();
  const std::int64_t begin = clock.now_ns();
  for (int i = 0; i < iterations; ++i) body();
  meet();
  return static_cast<double>(clock.now_ns() - begin) / 1e9 / iterations;
}

std::vector<MeasuredCollective> measured_collectives(std::string_view prefix,
                                                     const CollectivePlan& plan,
                                                     std::size_t bytes) {
  std::vector<MeasuredCollective> measured;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const CollectiveCase& what : kCases) {
      const MeasuredCollective one = {&what, dtype, bytes, plan.iterations(bytes)};
      if (is_wanted(plan.options(), name_of(prefix, one))) measured.push_back(one);
    }
  }
  return measured;
}

std::vector<std::size_t> wanted_collective_sizes(std::string_view prefix,
                                                 const CollectivePlan& plan) {
  std::vector<std::size_t> sizes = plan.sizes();
  std::erase_if(
      sizes, [&](std::size_t bytes) { return measured_collectives(prefix, plan, bytes).empty(); });
  return sizes;
}

std::vector<std::string> collective_names(std::string_view prefix, const CollectivePlan& plan) {
  std::vector<std::string> names;
  for (const std::size_t bytes : plan.sizes()) {
    for (const MeasuredCollective& one : measured_collectives(prefix, plan, bytes)) {
      names.push_back(name_of(prefix, one));
    }
  }
  return names;
}

BenchResult collective_result(std::string_view prefix, const MeasuredCollective& measured,
                              int ranks, const RatesBesideLimit& rates) {
  const Samples& value = rates.value;
  const double factor = measured.what->bus_factor(ranks);
  const auto size = static_cast<double>(measured.bytes);
  BenchResult result{.name = name_of(prefix, measured),
                     .value = value,
                     .limit = rates.limit,
                     .limit_is = rates.limit_is};
  const bool reduces = measured.what->kind == CollectiveKind::kAllReduce ||
                       measured.what->kind == CollectiveKind::kReduceScatter;
  const std::size_t count = measured.bytes / size_of(measured.dtype);
  result.details = {
      number_detail("ranks", "ranks", ranks),
      number_detail("size", "bytes", size),
      number_detail("count", "elements", static_cast<double>(count)),
      {"time", "s", value.mapped([=](double bus) { return size * factor / bus * 1e-9; })},
      number_detail("bus_factor", "times", factor),
      {"algbw", "GB/s", value.mapped([=](double bus) { return bus / factor; })},
      {"busbw", "GB/s", value}};
  result.notes = {{"type", std::string(name_of(measured.dtype))},
                  {"redop", reduces ? "sum" : "none"}};
  return result;
}

double bus_rate(const MeasuredCollective& measured, int ranks, double seconds) {
  return measured.what->bus_factor(ranks) * static_cast<double>(measured.bytes) / seconds / 1e9;
}

}  // namespace terrace
