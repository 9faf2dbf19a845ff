#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/train/token_sampler.h"

namespace terrace {

// A model of a Hugging Face directory, or of an adapter's directory and its base's, in memory. It
// computes logits in fp32.
class GoldenSampler {
 public:
  // Positions are rotated as in a text with the most ids, or as in each text itself.
  enum class Rope : std::uint8_t { kOfTheLongest, kOfEachText };

  // Takes texts of up to `positions` ids. Throws ConfigError.
  GoldenSampler(const std::string& directory, std::int64_t positions,
                Rope rope = Rope::kOfTheLongest);

  // Returns the logits of the vocabulary for the id that follows. They are valid until the next
  // call.
  std::span<const float> logits_after(std::span<const std::int32_t> ids);

 private:
  std::unique_ptr<TokenSampler> sampler_;
};

}  // namespace terrace
