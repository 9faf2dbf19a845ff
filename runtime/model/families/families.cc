#include <array>

#include "runtime/model/families/family.h"

namespace terrace {
namespace {

constexpr auto kFamilies = std::to_array<const Family*>({
    &kGemma2Family,
    &kGemma3TextFamily,
    &kGpt2Family,
    &kGraniteFamily,
    &kLlamaFamily,
    &kMistralFamily,
    &kOlmo2Family,
    &kPhi3Family,
    &kQwen2Family,
    &kQwen3Family,
    &kSmolLm3Family,
});

}  // namespace

std::span<const Family* const> all_families() { return kFamilies; }

const Family* find_family(std::string_view model_type) {
  for (const Family* family : kFamilies) {
    if (family->model_type == model_type) return family;
  }
  return nullptr;
}

}  // namespace terrace
