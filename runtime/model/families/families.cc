#include <algorithm>
#include <array>

#include "runtime/model/families/family.h"

namespace terrace {
namespace {

constexpr auto kFamilies = std::to_array<const Family*>({
    &kGemma2Family,
    &kGemma3TextFamily,
    &kGlm4MoeFamily,
    &kGpt2Family,
    &kGptOssFamily,
    &kGraniteFamily,
    &kGraniteMoeFamily,
    &kLlamaFamily,
    &kMistralFamily,
    &kMixtralFamily,
    &kOlmo2Family,
    &kOlmoeFamily,
    &kPhi3Family,
    &kQwen2Family,
    &kQwen2MoeFamily,
    &kQwen3Family,
    &kQwen3MoeFamily,
    &kSmolLm3Family,
});

struct Missing {
  std::string_view model_type, what;
};

// Families with experts that people will try.
constexpr auto kMissing = std::to_array<Missing>({
    {"deepseek_v2", "latent attention"},
    {"deepseek_v3", "latent attention and weights of fp8"},
});

}  // namespace

std::string_view missing_of(std::string_view model_type) {
  const auto found = std::ranges::find(kMissing, model_type, &Missing::model_type);
  return found == kMissing.end() ? "" : found->what;
}

std::span<const Family* const> all_families() { return kFamilies; }

const Family* find_family(std::string_view model_type) {
  for (const Family* family : kFamilies) {
    if (family->model_type == model_type) return family;
  }
  return nullptr;
}

}  // namespace terrace
