#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/decoder_options.h"

// Low-rank adapters (Hu et al. 2021, arXiv:2106.09685). A linear layer of weight W [out, in] that
// is adapted computes x W^T + s (x A^T) B^T, with A [rank, in] and B [out, rank]. W is frozen, A
// and B train. With magnitudes (DoRA: Liu et al. 2024, arXiv:2402.09353) column i of this result is
// multiplied with m[i] / n[i], where n[i] is the norm of row i of W + s B A, a constant to the
// gradient, and m [out] trains too. With dropout, A reads x with elements dropped at random. Names,
// files and initial values follow Hugging Face's PEFT.
namespace terrace {

// The rank and the alpha of a layer's adapter.
struct AdapterSize {
  std::int64_t rank = 0;
  double alpha = 0;

  friend bool operator==(const AdapterSize&, const AdapterSize&) = default;
};

// A pattern of names of modules, with the rank or the alpha of the layers that it matches: an entry
// of PEFT's rank_pattern or alpha_pattern (adapter_patterns.h).
template <typename Value>
struct LayerPattern {
  std::string pattern;
  Value value = 0;

  friend bool operator==(const LayerPattern&, const LayerPattern&) = default;
};

struct AdapterOptions {
  std::int64_t rank = 0;  // 0: the model has no adapter
  double alpha = 0;
  bool is_rank_stabilized = false;  // Kalajdzievski 2023, arXiv:2312.03732
  bool has_magnitudes = false;      // DoRA
  // The probability with which an element of A's input is dropped in training (dropout.h).
  double dropout = 0;
  // The layers that are adapted, as target_modules has them: names of modules in Hugging Face's
  // files ("model.layers.0.self_attn.q_proj"), or their ends after a dot ("q_proj").
  std::vector<std::string> targets;
  // Patterns of layers that have another rank or alpha. The first pattern that matches a layer
  // counts.
  std::vector<LayerPattern<std::int64_t>> rank_patterns = {};
  std::vector<LayerPattern<double>> alpha_patterns = {};
  // The ranks and alphas of the layers that a pattern matches, by the names of their modules.
  std::map<std::string, AdapterSize, std::less<>> sizes = {};
  // The modules that train whole beside the adapter, as modules_to_save has them: ends of their
  // names, also without a dot before them. Everything in such a module trains.
  std::vector<std::string> whole_modules = {};

  bool is_there() const { return rank > 0; }
  // Returns the rank and the alpha of the layer with this stored weight.
  AdapterSize size_of(std::string_view stored_name) const;
  // Returns the layer's s: alpha / rank, or alpha / sqrt(rank) if is_rank_stabilized.
  float scale_of(std::string_view stored_name) const;
  // Returns whether the layer with this stored weight is adapted.
  bool has_target(std::string_view stored_name) const;
  // Returns whether a stored tensor belongs to a module that trains whole.
  bool trains_whole(std::string_view stored_name) const;
  friend bool operator==(const AdapterOptions&, const AdapterOptions&) = default;
};

// The words by which the user knows an adapter's dropout and its magnitudes, and what the user can
// do if they exclude each other.
struct DropoutWords {
  std::string dropout, magnitudes, remedy;
};
// Throws ConfigError for dropout with magnitudes. PEFT then also multiplies the dropped input with
// the base's weight, which is another formula.
void check_dropout(const AdapterOptions& adapter, const DropoutWords& words);

// Returns one line with all of it; empty where there is no adapter.
std::string describe(const AdapterOptions& adapter);

// Returns the module of a stored weight: "model.layers.0.self_attn.q_proj" for "....q_proj.weight".
std::string_view module_of(std::string_view stored_name);

// Returns whether a parameter is the weight of a linear layer of a block. The functions below
// return the kinds of such a weight's two adapter matrices and of its magnitudes.
constexpr bool is_layer_weight(ParameterKind kind) {
  return ParameterKind::kQuery <= kind && kind <= ParameterKind::kDown;
}
// Returns the number of a weight's layer in its block, from 0 on and below kLayerNumbers.
inline constexpr std::uint32_t kLayerNumbers = 8;
constexpr std::uint32_t layer_number(ParameterKind weight) {
  return static_cast<std::uint32_t>(weight) - static_cast<std::uint32_t>(ParameterKind::kQuery);
}
static_assert(layer_number(ParameterKind::kDown) < kLayerNumbers);
constexpr ParameterKind adapter_a(ParameterKind weight) {
  return static_cast<ParameterKind>(static_cast<int>(ParameterKind::kQueryA) +
                                    static_cast<int>(weight) -
                                    static_cast<int>(ParameterKind::kQuery));
}
constexpr ParameterKind adapter_b(ParameterKind weight) {
  return static_cast<ParameterKind>(static_cast<int>(ParameterKind::kQueryB) +
                                    static_cast<int>(weight) -
                                    static_cast<int>(ParameterKind::kQuery));
}
constexpr ParameterKind adapter_magnitude(ParameterKind weight) {
  return static_cast<ParameterKind>(static_cast<int>(ParameterKind::kQueryMagnitude) +
                                    static_cast<int>(weight) -
                                    static_cast<int>(ParameterKind::kQuery));
}
constexpr bool is_magnitude(ParameterKind kind) {
  return ParameterKind::kQueryMagnitude <= kind && kind <= ParameterKind::kDownMagnitude;
}
// Returns the weight that magnitudes belong to.
constexpr ParameterKind weight_of_magnitude(ParameterKind magnitude) {
  return static_cast<ParameterKind>(static_cast<int>(ParameterKind::kQuery) +
                                    static_cast<int>(magnitude) -
                                    static_cast<int>(ParameterKind::kQueryMagnitude));
}
constexpr bool is_adapter(ParameterKind kind) {
  return ParameterKind::kQueryA <= kind && kind <= ParameterKind::kDownMagnitude;
}
static_assert(adapter_a(ParameterKind::kDown) == ParameterKind::kDownA);
static_assert(adapter_b(ParameterKind::kDown) == ParameterKind::kDownB);
static_assert(adapter_magnitude(ParameterKind::kDown) == ParameterKind::kDownMagnitude);

}  // namespace terrace
