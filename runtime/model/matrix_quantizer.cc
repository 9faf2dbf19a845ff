#include "runtime/model/matrix_quantizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

namespace terrace {
namespace {

constexpr int kNf4Codes = 16;
constexpr int kDynamicCodes = 256;

// Returns the largest magnitude; NaN where a number is not finite.
float largest_magnitude(std::span<const float> numbers) {
  float largest = 0.0F;
  bool is_finite = true;
  for (const float number : numbers) {
    largest = std::max(largest, std::abs(number));
    is_finite = is_finite && std::isfinite(number);
  }
  return is_finite ? largest : std::numeric_limits<float>::quiet_NaN();
}

// Returns the middles between neighbouring levels. A number above a middle is nearer to the upper
// level.
constexpr std::array<float, kNf4Codes - 1> nf4_middles() {
  std::array<float, kNf4Codes - 1> middles{};
  for (int code = 0; code + 1 < kNf4Codes; ++code) {
    middles.at(static_cast<std::size_t>(code)) = (nf4_level(code) + nf4_level(code + 1)) / 2;
  }
  return middles;
}

int nearest_nf4(float number) {
  static constexpr auto kMiddles = nf4_middles();
  int code = 0;
  for (const float middle : kMiddles) code += number > middle ? 1 : 0;
  return code;
}

// Returns the nearest code; of two codes that are equally near, the even one. Computes in double,
// so that all such ties are seen: there are many among numbers of few bits.
std::int8_t nearest_int8(float number, float scale) {
  if (!(scale > 0)) return 0;
  return static_cast<std::int8_t>(std::nearbyint(127.0 * number / scale));
}

constexpr std::array<float, kDynamicCodes> dynamic_levels() {
  std::array<float, kDynamicCodes> levels{};
  for (int code = 0; code < kDynamicCodes; ++code) {
    levels.at(static_cast<std::size_t>(code)) = dynamic_level(code);
  }
  return levels;
}

std::uint8_t nearest_dynamic(float number) {
  static constexpr auto kLevels = dynamic_levels();
  const auto above = std::ranges::lower_bound(kLevels, number);
  if (above == kLevels.begin()) return 0;
  if (above == kLevels.end()) return kDynamicOne;
  const auto below = above - 1;
  return static_cast<std::uint8_t>((number - *below <= *above - number ? below : above) -
                                   kLevels.begin());
}

class MatrixQuantizer {
 public:
  MatrixQuantizer(const QuantizedShape& shape, MatrixNumbers numbers)
      : shape_(shape),
        numbers_(numbers),
        elements_(shape.elements * shape.ranks),
        scales_(static_cast<std::size_t>(shape.whole_blocks())),
        bytes_(static_cast<std::size_t>(shape.size_bytes())) {}

  std::vector<std::byte> run(WorkerArena& workers) {
    workers.parallel_for(shape_.groups(), [this](std::int64_t group, int) { encode(group); });
    if (shape_.form == QuantizedForm::kNf4) {
      encode_scales();
    } else {
      store_scales();
    }
    return std::move(bytes_);
  }

 private:
  // Encodes the blocks that share a factor, as one task: the scales of all of them, and the codes
  // of those that belong to this part.
  void encode(std::int64_t group) {
    const std::int64_t first = group * kScaleGroup;
    const std::int64_t begin = first * kQuantizedBlock;
    const std::int64_t end = std::min(begin + kScaleGroup * kQuantizedBlock, elements_);
    std::vector<float> values(static_cast<std::size_t>(end - begin));
    numbers_(begin, values);
    constexpr auto kBlock = static_cast<std::size_t>(kQuantizedBlock);
    for (std::size_t at = 0; at < values.size(); at += kBlock) {
      const auto block = first + static_cast<std::int64_t>(at / kBlock);
      const auto numbers = std::span(values).subspan(at, std::min(kBlock, values.size() - at));
      const float scale = largest_magnitude(numbers);
      scales_[static_cast<std::size_t>(block)] = scale;
      const std::optional<std::int64_t> own = block_of_part(block);
      if (own) encode_block(*own, numbers, scale);
    }
  }

  // Returns the number that a block of the whole matrix has in this part; none where it is in
  // another part.
  std::optional<std::int64_t> block_of_part(std::int64_t whole) const {
    const std::int64_t run = whole / shape_.run_blocks;
    if (run % shape_.ranks != shape_.rank) return std::nullopt;
    return run / shape_.ranks * shape_.run_blocks + whole % shape_.run_blocks;
  }

  void encode_block(std::int64_t block, std::span<const float> numbers, float scale) {
    auto* const codes =
        reinterpret_cast<std::uint8_t*>(bytes_.data() + block * shape_.block_bytes());
    constexpr auto kHalf = static_cast<std::size_t>(kQuantizedBlock / 2);
    for (std::size_t i = 0; i < static_cast<std::size_t>(kQuantizedBlock); ++i) {
      const float number = i < numbers.size() ? numbers[i] : 0.0F;
      if (shape_.form == QuantizedForm::kInt8) {
        codes[i] = static_cast<std::uint8_t>(nearest_int8(number, scale));
        continue;
      }
      const int code = nearest_nf4(scale > 0 ? number / scale : 0.0F);
      if (i < kHalf) {
        codes[i] = static_cast<std::uint8_t>(code);
      } else {
        codes[i - kHalf] = static_cast<std::uint8_t>(codes[i - kHalf] | code << 4);
      }
    }
  }

  void store_scales() {
    for (std::int64_t block = 0; block < shape_.blocks(); ++block) {
      store_float(shape_.scales_begin(), block,
                  scales_[static_cast<std::size_t>(shape_.whole_block(block))]);
    }
  }

  // Encodes the scales in whole groups, though a part may have only some of a group's blocks.
  void encode_scales() {
    double sum = 0;
    for (const float scale : scales_) sum += scale;
    const auto mean = static_cast<float>(sum / static_cast<double>(scales_.size()));
    store_float(shape_.factors_begin(), shape_.groups(), mean);
    for (std::int64_t group = 0; group < shape_.groups(); ++group) {
      const std::int64_t first = group * kScaleGroup;
      const std::int64_t end = std::min(first + kScaleGroup, shape_.whole_blocks());
      const auto scales = std::span(scales_).subspan(static_cast<std::size_t>(first),
                                                     static_cast<std::size_t>(end - first));
      for (float& scale : scales) scale -= mean;
      const float factor = largest_magnitude(scales);
      store_float(shape_.factors_begin(), group, factor);
      for (std::int64_t block = first; block < end; ++block) {
        const std::optional<std::int64_t> own = block_of_part(block);
        if (!own) continue;
        const float rest = scales_[static_cast<std::size_t>(block)];
        const std::uint8_t code = factor > 0 ? nearest_dynamic(rest / factor) : kDynamicZero;
        bytes_[static_cast<std::size_t>(shape_.scales_begin() + *own)] = std::byte{code};
      }
    }
  }

  void store_float(std::int64_t begin, std::int64_t index, float value) {
    std::memcpy(bytes_.data() + begin + index * static_cast<std::int64_t>(sizeof(value)), &value,
                sizeof(value));
  }

  const QuantizedShape shape_;
  const MatrixNumbers numbers_;
  const std::int64_t elements_;  // of the whole matrix
  std::vector<float> scales_;    // by block of the whole matrix
  std::vector<std::byte> bytes_;
};

}  // namespace

std::vector<std::byte> quantize_matrix(const QuantizedShape& shape, MatrixNumbers numbers,
                                       WorkerArena& workers) {
  return MatrixQuantizer(shape, numbers).run(workers);
}

}  // namespace terrace
