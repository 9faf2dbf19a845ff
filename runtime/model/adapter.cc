#include "runtime/model/adapter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace terrace {

float AdapterOptions::scale() const {
  const auto count = static_cast<double>(rank);
  return static_cast<float>(alpha / (is_rank_stabilized ? std::sqrt(count) : count));
}

bool AdapterOptions::has_target(std::string_view stored_name) const {
  const std::string_view module = module_of(stored_name);
  return std::ranges::any_of(targets, [&](std::string_view target) {
    if (!module.ends_with(target)) return false;
    return module.size() == target.size() || module[module.size() - target.size() - 1] == '.';
  });
}

std::string describe(const AdapterOptions& adapter) {
  if (!adapter.is_there()) return "";
  return fmt::format("adapter {} {} {}{} [{}]", adapter.rank, adapter.alpha,
                     adapter.is_rank_stabilized ? 1 : 0, adapter.has_magnitudes ? " dora" : "",
                     fmt::join(adapter.targets, " "));
}

std::string_view module_of(std::string_view stored_name) {
  constexpr std::string_view kWeight = ".weight";
  if (stored_name.ends_with(kWeight)) stored_name.remove_suffix(kWeight.size());
  return stored_name;
}

}  // namespace terrace
