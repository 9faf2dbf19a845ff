#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/train/sampler.h"

namespace terrace {

// A model of a Hugging Face directory, or of an adapter's and its base's, in memory, that computes
// logits in fp32.
class GoldenSampler {
 public:
  // Computes `window` positions, however many ids there are. Throws ConfigError.
  GoldenSampler(const std::string& directory, std::int64_t window);

  // Logits of the vocabulary for what follows the ids, at most as many as the window has. Good
  // until the next call.
  std::span<const float> logits_after(std::span<const std::int32_t> ids);

 private:
  std::unique_ptr<TokenSampler> sampler_;
};

}  // namespace terrace
