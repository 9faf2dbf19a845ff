#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/train/token_sampler.h"

namespace terrace {

// A model of a Hugging Face directory, or of an adapter's and its base's, in memory, that computes
// logits in fp32.
class GoldenSampler {
 public:
  // Positions are rotated as in a text of the most ids, or as in each text.
  enum class Rope : std::uint8_t { kOfTheLongest, kOfEachText };

  // Takes texts of up to `positions` ids. Throws ConfigError.
  GoldenSampler(const std::string& directory, std::int64_t positions,
                Rope rope = Rope::kOfTheLongest);

  // Logits of the vocabulary for what follows the ids. Valid until the next call.
  std::span<const float> logits_after(std::span<const std::int32_t> ids);

 private:
  std::unique_ptr<TokenSampler> sampler_;
};

}  // namespace terrace
