#include "runtime/model/adapter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace terrace {
namespace {

template <typename Value>
std::string describe(const char* key, const std::vector<LayerPattern<Value>>& patterns) {
  if (patterns.empty()) return "";
  std::vector<std::string> entries;
  for (const auto& [pattern, value] : patterns) {
    entries.push_back(fmt::format("{}: {}", pattern, value));
  }
  return fmt::format(" {} {{{}}}", key, fmt::join(entries, ", "));
}

}  // namespace

AdapterSize AdapterOptions::size_of(std::string_view stored_name) const {
  const auto found = sizes.find(module_of(stored_name));
  return found == sizes.end() ? AdapterSize{rank, alpha} : found->second;
}

float AdapterOptions::scale_of(std::string_view stored_name) const {
  const AdapterSize size = size_of(stored_name);
  const auto count = static_cast<double>(size.rank);
  return static_cast<float>(size.alpha / (is_rank_stabilized ? std::sqrt(count) : count));
}

bool AdapterOptions::has_target(std::string_view stored_name) const {
  const std::string_view module = module_of(stored_name);
  return std::ranges::any_of(targets, [&](std::string_view target) {
    if (!module.ends_with(target)) return false;
    return module.size() == target.size() || module[module.size() - target.size() - 1] == '.';
  });
}

bool AdapterOptions::trains_whole(std::string_view stored_name) const {
  for (std::size_t dot = stored_name.find('.'); dot != std::string_view::npos;
       dot = stored_name.find('.', dot + 1)) {
    const std::string_view module = stored_name.substr(0, dot);
    const auto is_end = [&](std::string_view end) { return module.ends_with(end); };
    if (std::ranges::any_of(whole_modules, is_end)) return true;
  }
  return false;
}

void check_dropout(const AdapterOptions& adapter, const DropoutWords& words) {
  if (adapter.dropout == 0 || !adapter.has_magnitudes) return;
  throw ConfigError(
      fmt::format("{} is not built together with {}", words.dropout, words.magnitudes),
      words.remedy);
}

std::string describe(const AdapterOptions& adapter) {
  if (!adapter.is_there()) return "";
  return fmt::format("adapter {} {} {}{}{} [{}]{}{}{}", adapter.rank, adapter.alpha,
                     adapter.is_rank_stabilized ? 1 : 0, adapter.has_magnitudes ? " dora" : "",
                     adapter.dropout > 0 ? fmt::format(" dropout {}", adapter.dropout) : "",
                     fmt::join(adapter.targets, " "), describe("ranks", adapter.rank_patterns),
                     describe("alphas", adapter.alpha_patterns),
                     adapter.whole_modules.empty()
                         ? ""
                         : fmt::format(" whole [{}]", fmt::join(adapter.whole_modules, " ")));
}

std::string_view module_of(std::string_view stored_name) {
  constexpr std::string_view kWeight = ".weight";
  if (stored_name.ends_with(kWeight)) stored_name.remove_suffix(kWeight.size());
  return stored_name;
}

}  // namespace terrace
