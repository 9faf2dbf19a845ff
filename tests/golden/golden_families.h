#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

// The golden cases that must hold. A case belongs to the family that its config.json names as
// model_type.
namespace terrace {

// The families whose cases run, one per line.
inline constexpr auto kFamilies = std::to_array<std::string_view>({
    "gemma2",
    "gemma3_text",
    "glm4_moe",
    "gpt2",
    "gpt_oss",
    "granite",
    "granitemoe",
    "llama",
    "mistral",
    "mixtral",
    "olmo2",
    "olmoe",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "smollm3",
});

// The families whose config.json is refused.
inline constexpr std::array<std::string_view, 0> kFamiliesNotBuilt = {};

// Cases of families that run, but whose option is not built: they are refused, or their results
// differ.
inline constexpr std::array<std::string_view, 0> kCasesNotBuilt = {};

template <typename List>
bool has_name(const List& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

// Returns the model_type of a case. Throws nlohmann::json::exception.
std::string family_of(const std::string& name);

// Returns the cases whose results must be the golden ones.
std::vector<std::string> cases_that_hold();

}  // namespace terrace
