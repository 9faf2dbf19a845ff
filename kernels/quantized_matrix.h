#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

// How a frozen matrix is kept in 4 or 8 bits a number: the format of its bytes, and the numbers
// that the codes stand for. Encoders and all kernels use these functions, so that they agree to the
// bit.
//
// A matrix [out, in] is one sequence of numbers, row by row, cut into blocks of 64; the last block
// may be short. A block has a scale, its largest magnitude (absmax).
//
//   nf4   a number is nf4_level(code) * scale. Codes of 4 bits (NormalFloat: Dettmers et al. 2023,
//         arXiv:2305.14314, appendix E). The scales are quantised too ("double quantisation",
//         section 3): their mean over the matrix is subtracted, and the rest of each scale is the
//         number of an 8-bit code times the largest magnitude in its group of 256 blocks.
//         dynamic_level() gives the numbers of 8-bit codes: dynamic tree quantisation (Dettmers et
//         al. 2021, arXiv:2110.02861), as in the library bitsandbytes.
//   int8  a number is code * (scale / 127), with codes from -127 to 127 and scales in fp32.
//
// The bytes, each part padded to 64:
//
//   nf4   32 bytes a block: number i of the block (i < 32) in the low half of byte i, number 32 + i
//         in its high half; then a code of 8 bits for each block's scale; then in fp32 the factor
//         of each group of the whole matrix, and the mean
//   int8  64 bytes a block; then the scales in fp32
namespace terrace {

enum class QuantizedForm : std::uint8_t { kNf4, kInt8 };

inline constexpr std::int64_t kQuantizedBlock = 64;  // numbers that share a scale
inline constexpr std::int64_t kScaleGroup = 256;     // scales that share a factor

// The sizes of a matrix, or of a tensor-parallel rank's part of one. A part has whole blocks of the
// matrix: runs of `run_blocks` blocks are dealt to the ranks in turn. Groups and the mean belong to
// the whole matrix, so that a part has the same numbers as the matrix.
struct QuantizedShape {
  QuantizedForm form = QuantizedForm::kNf4;
  std::int64_t elements = 0;  // of the part
  std::int64_t run_blocks = 1;
  std::int64_t ranks = 1;
  std::int64_t rank = 0;

  constexpr std::int64_t blocks() const {
    return (elements + kQuantizedBlock - 1) / kQuantizedBlock;
  }
  constexpr std::int64_t whole_blocks() const { return blocks() * ranks; }
  // Returns the number that a block of the part has in the whole matrix.
  constexpr std::int64_t whole_block(std::int64_t block) const {
    return (block / run_blocks * ranks + rank) * run_blocks + block % run_blocks;
  }
  constexpr std::int64_t groups() const { return (whole_blocks() + kScaleGroup - 1) / kScaleGroup; }
  constexpr std::int64_t block_bytes() const {
    return form == QuantizedForm::kNf4 ? kQuantizedBlock / 2 : kQuantizedBlock;
  }
  // The byte offsets at which the sections begin.
  constexpr std::int64_t scales_begin() const { return padded(blocks() * block_bytes()); }
  constexpr std::int64_t factors_begin() const { return scales_begin() + padded(blocks()); }
  constexpr std::int64_t size_bytes() const {
    if (form == QuantizedForm::kInt8) return scales_begin() + padded(blocks() * kFloat);
    return factors_begin() + padded((groups() + 1) * kFloat);
  }

  friend bool operator==(const QuantizedShape&, const QuantizedShape&) = default;

 private:
  static constexpr std::int64_t kFloat = sizeof(float);
  static constexpr std::int64_t padded(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }
};

// Returns the number that a 4-bit code in [0, 16) stands for, ascending: quantiles of a normal
// distribution in [-1, 1], with an exact zero.
constexpr float nf4_level(int code) {
  constexpr float kLevels[] = {
      -1.0F,
      -0.6961928009986877F,
      -0.5250730514526367F,
      -0.39491748809814453F,
      -0.28444138169288635F,
      -0.18477343022823334F,
      -0.09105003625154495F,
      0.0F,
      0.07958029955625534F,
      0.16093020141124725F,
      0.24611230194568634F,
      0.33791524171829224F,
      0.44070982933044434F,
      0.5626170039176941F,
      0.7229568362236023F,
      1.0F,
  };
  return kLevels[code];
}

inline constexpr int kDynamicZero = 127;  // the code of 0
inline constexpr int kDynamicOne = 255;   // the code of 1, which has no negative

// Returns the number of an 8-bit code in [0, 256), ascending. Its magnitude is 10^(e - 6) times a
// fraction of e bits, from the middles of 2^e equal parts of [0.1, 1].
constexpr float dynamic_level(int code) {
  if (code == kDynamicZero) return 0.0F;
  if (code == kDynamicOne) return 1.0F;
  constexpr float kPowers[] = {1e-6F, 1e-5F, 1e-4F, 1e-3F, 1e-2F, 1e-1F, 1.0F};
  const int number = code > kDynamicZero ? code - kDynamicZero : kDynamicZero - code;
  const int exponent = static_cast<int>(std::bit_width(static_cast<unsigned>(number))) - 1;
  const int parts = 1 << exponent;
  const float fraction = (static_cast<float>(number - parts) + 0.5F) / static_cast<float>(parts);
  const float magnitude = kPowers[exponent] * (0.1F + 0.9F * fraction);
  return code > kDynamicZero ? magnitude : -magnitude;
}

// Where the sections of a part of a matrix begin within its bytes, which start on a boundary of 4.
struct QuantizedBytes {
  const std::uint8_t* codes = nullptr;
  const std::uint8_t* scale_codes = nullptr;  // of nf4
  const float* scales = nullptr;              // nf4: the factors of groups, then the mean

  QuantizedBytes(const std::byte* bytes, const QuantizedShape& shape)
      : codes(reinterpret_cast<const std::uint8_t*>(bytes)),
        scale_codes(codes + shape.scales_begin()),
        scales(reinterpret_cast<const float*>(bytes + (shape.form == QuantizedForm::kNf4
                                                           ? shape.factors_begin()
                                                           : shape.scales_begin()))) {}
};

// Returns the factor that the levels of a block's codes are multiplied by.
constexpr float block_factor(const QuantizedBytes& bytes, const QuantizedShape& shape,
                             std::int64_t block) {
  if (shape.form == QuantizedForm::kInt8) return bytes.scales[block] / 127.0F;
  const float factor = bytes.scales[shape.whole_block(block) / kScaleGroup];
  return dynamic_level(bytes.scale_codes[block]) * factor + bytes.scales[shape.groups()];
}

// Returns number `i` of a block, before it is multiplied by the block's factor.
constexpr float block_level(const QuantizedBytes& bytes, const QuantizedShape& shape,
                            std::int64_t block, int i) {
  const std::uint8_t* const codes = bytes.codes + block * shape.block_bytes();
  if (shape.form == QuantizedForm::kInt8) {
    return static_cast<float>(static_cast<std::int8_t>(codes[i]));
  }
  constexpr int kHalf = static_cast<int>(kQuantizedBlock / 2);
  return nf4_level(i < kHalf ? codes[i] & 15 : codes[i - kHalf] >> 4);
}

}  // namespace terrace
