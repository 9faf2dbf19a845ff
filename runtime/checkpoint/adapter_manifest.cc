#include "runtime/checkpoint/adapter_manifest.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <vector>

#include "runtime/checkpoint/json_number.h"

namespace terrace {
namespace {

using nlohmann::json;

constexpr const char* kRankPatterns = "rank_patterns";
constexpr const char* kAlphaPatterns = "alpha_patterns";
constexpr const char* kWholeModules = "whole_modules";

// Lists patterns in their order, which an object would not keep.
template <typename Value>
json listed(const std::vector<LayerPattern<Value>>& patterns) {
  json list = json::array();
  for (const auto& [pattern, value] : patterns) list.push_back({pattern, value});
  return list;
}

std::int64_t parse_rank(const json& listed) {
  const auto rank = whole_number<std::int64_t>(listed);
  if (rank < 1 || rank > 1 << 24) throw std::invalid_argument(fmt::format("a rank is {}", rank));
  return rank;
}

std::vector<LayerPattern<std::int64_t>> parse_ranks(const json& adapter) {
  std::vector<LayerPattern<std::int64_t>> patterns;
  if (!adapter.contains(kRankPatterns)) return patterns;
  for (const json& entry : adapter.at(kRankPatterns)) {
    patterns.push_back({entry.at(0).get<std::string>(), parse_rank(entry.at(1))});
  }
  return patterns;
}

std::vector<LayerPattern<double>> parse_alphas(const json& adapter) {
  std::vector<LayerPattern<double>> patterns;
  if (!adapter.contains(kAlphaPatterns)) return patterns;
  for (const json& entry : adapter.at(kAlphaPatterns)) {
    patterns.push_back({entry.at(0).get<std::string>(), entry.at(1).get<double>()});
  }
  return patterns;
}

}  // namespace

std::string to_json(const AdapterOptions& adapter) {
  json keys = {{"rank", adapter.rank},
               {"alpha", adapter.alpha},
               {"rank_stabilized", adapter.is_rank_stabilized},
               {"targets", adapter.targets}};
  if (adapter.has_magnitudes) keys["dora"] = true;
  if (adapter.dropout > 0) keys["dropout"] = adapter.dropout;
  if (!adapter.rank_patterns.empty()) keys[kRankPatterns] = listed(adapter.rank_patterns);
  if (!adapter.alpha_patterns.empty()) keys[kAlphaPatterns] = listed(adapter.alpha_patterns);
  if (!adapter.whole_modules.empty()) keys[kWholeModules] = adapter.whole_modules;
  return keys.dump();
}

AdapterOptions parse_adapter_options(const std::string& text) {
  const json listed = json::parse(text);
  return {.rank = parse_rank(listed.at("rank")),
          .alpha = listed.at("alpha").get<double>(),
          .is_rank_stabilized = listed.at("rank_stabilized").get<bool>(),
          .has_magnitudes = listed.value("dora", false),
          .dropout = listed.value("dropout", 0.0),
          .targets = listed.at("targets").get<std::vector<std::string>>(),
          .rank_patterns = parse_ranks(listed),
          .alpha_patterns = parse_alphas(listed),
          .whole_modules = listed.value(kWholeModules, std::vector<std::string>())};
}

}  // namespace terrace
