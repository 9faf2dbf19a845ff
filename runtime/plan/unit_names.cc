#include "runtime/plan/unit_names.h"

#include <fmt/format.h>

#include <charconv>

namespace terrace {
namespace {

bool is_block(const StepModel& model, std::int32_t unit) {
  return !model.joins_micro_batches(unit) && !model.fuses_passes(unit);
}

}  // namespace

std::string name_of_unit(const StepModel& model, std::int32_t unit) {
  if (model.joins_micro_batches(unit)) return "the embedding";
  if (model.fuses_passes(unit)) return "the head";
  std::int32_t blocks = 0;
  for (std::int32_t u = 0; u < unit; ++u) blocks += is_block(model, u) ? 1 : 0;
  return fmt::format("block {}", blocks);
}

std::optional<std::int32_t> find_unit(const StepModel& model, std::string_view name) {
  std::int32_t number = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  const bool is_number = error == std::errc() && end == name.data() + name.size();
  std::int32_t blocks = 0;
  for (std::int32_t u = 0; u <= model.last_unit(); ++u) {
    if (name == "embedding" && model.joins_micro_batches(u)) return u;
    if (name == "head" && model.fuses_passes(u)) return u;
    if (is_number && is_block(model, u) && blocks++ == number) return u;
  }
  return std::nullopt;
}

}  // namespace terrace
