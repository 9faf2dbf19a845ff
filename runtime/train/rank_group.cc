#include "runtime/train/rank_group.h"

#include <algorithm>
#include <vector>

namespace terrace {
namespace {

// Every rank's value, by rank.
template <typename T>
std::vector<T> of_all(Communicator& control, T value) {
  std::vector<T> values(static_cast<std::size_t>(control.size()));
  control.all_gather(view(std::as_writable_bytes(std::span(values))),
                     view(std::as_writable_bytes(std::span(&value, 1))), {});
  return values;
}

}  // namespace

bool RankGroup::any(bool value) const {
  if (ranks_.control == nullptr) return value;
  std::int32_t flag = value ? 1 : 0;
  ranks_.control->all_reduce(view(std::span(&flag, 1)), ReduceOp::kMax, {});
  return flag != 0;
}

std::int64_t RankGroup::smallest(std::int64_t value) const {
  if (ranks_.control == nullptr) return value;
  const std::vector<std::int64_t> values = of_all(*ranks_.control, value);
  return *std::min_element(values.begin(), values.end());
}

bool RankGroup::is_same(std::uint64_t value) const {
  if (ranks_.control == nullptr) return true;
  const std::vector<std::uint64_t> values = of_all(*ranks_.control, value);
  return std::all_of(values.begin(), values.end(),
                     [&](std::uint64_t other) { return other == values.front(); });
}

double RankGroup::sum(double value) const {
  if (ranks_.control == nullptr) return value;
  double sum = 0;
  for (const double one : of_all(*ranks_.control, value)) sum += one;
  return sum;
}

std::string RankGroup::text_of_first(const std::string& text) const {
  if (ranks_.control == nullptr) return text;
  std::int32_t size = static_cast<std::int32_t>(text.size());
  ranks_.control->broadcast(view(std::span(&size, 1)), 0, {});
  std::string shared = is_first() ? text : std::string(static_cast<std::size_t>(size), ' ');
  ranks_.control->broadcast(view(std::as_writable_bytes(std::span(shared))), 0, {});
  return shared;
}

void RankGroup::combine(RunTotals& totals) const {
  if (ranks_.control == nullptr) return;
  for (double& bytes : totals.bytes) bytes = sum(bytes);
  for (double& busy_s : totals.busy_s) {
    const std::vector<double> values = of_all(*ranks_.control, busy_s);
    busy_s = *std::max_element(values.begin(), values.end());
  }
  totals.parameter_upload_bytes = sum(totals.parameter_upload_bytes);
  totals.parameter_read_bytes = sum(totals.parameter_read_bytes);
}

}  // namespace terrace
