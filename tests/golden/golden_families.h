#pragma once

#include <array>
#include <string_view>

// Which golden cases must hold. A case is of the family that its config.json names as model_type.
namespace terrace {

// Families whose cases run: one line each.
inline constexpr auto kFamilies = std::to_array<std::string_view>({
    "gpt2",
    "llama",
});

// Families whose config.json is refused.
inline constexpr auto kFamiliesNotBuilt = std::to_array<std::string_view>({
    "gemma2",
    "gemma3_text",
    "granite",
    "mistral",
    "olmo2",
    "phi3",
    "qwen2",
    "qwen3",
    "smollm3",
});

// Cases of families that run, whose option is not built: they are refused, or their results differ.
inline constexpr auto kCasesNotBuilt = std::to_array<std::string_view>({
    "llama_padding",
    "llama_padding_tied",
    "llama_rope_dynamic",
    "llama_rope_longrope_attention_factor",
    "llama_rope_longrope_long",
    "llama_rope_longrope_short",
    "llama_rope_yarn",
    "llama_rope_yarn_attention_factor",
    "llama_rope_yarn_outer_positions",
    "llama_rope_yarn_parameters",
});

}  // namespace terrace
