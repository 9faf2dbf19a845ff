#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/wire_forms.h"
#include "memory/tensor.h"

// Numbers in fewer bits for the way between ranks, and the ops that encode and decode them.
//
// Numbers are cut into blocks of 256. A block has a scale: its largest magnitude divided by the
// largest code, in fp32. The largest code is 127 for int8 and 7 for int4. A code is the number
// times (largest code / largest magnitude), a quotient and a product in fp32, rounded to the
// nearest integer, halves to even. No code can be beyond the largest, because the product is at
// most one unit in the last place above it. A code stands for code * scale, a product in fp32.
// Where the largest magnitude is below 2^-100, the scale and all codes are 0, because the quotient
// could be infinite. Codes with a scale for each block are as in Dettmers et al. 2021,
// arXiv:2110.02861, section 2.1.
//
// The bytes of n numbers, a multiple of 256: the scales of all blocks, then all codes. int8: one
// byte each, in two's complement. int4: 128 bytes a block; byte i has number i of the block in its
// low half and number 128 + i in its high half, each as code + 8. The bytes begin on a boundary of
// 4.
namespace terrace {

inline constexpr std::int64_t kWireBlock = 256;  // numbers that share a scale
inline constexpr float kLeastWireMagnitude = 0x1p-100F;

constexpr float largest_code(WireForm form) { return form == WireForm::kInt4 ? 7.0F : 127.0F; }

// Returns the bytes of this many numbers in codes of a form other than plain.
constexpr std::size_t coded_bytes(WireForm form, std::int64_t elements) {
  const auto n = static_cast<std::size_t>(elements);
  return n / kWireBlock * sizeof(float) + (form == WireForm::kInt4 ? n / 2 : n);
}

// Encodes a chunk that consists of P parts of n numbers, each into a row of codes.
// source: [P * n], fp32 or a compute type. codes: u8 [P, coded_bytes(form, n)].
//
// Where `errors` is not empty, it has what the codes of earlier chunks lost (error feedback: Seide
// et al. 2014, "1-bit stochastic gradient descent"): the numbers encoded are source + errors, added
// in fp32, and errors gets their difference to what the codes stand for. errors: u8
// [coded_bytes(kInt8, P * n)], itself in int8 codes.
//
// A block with an infinity or NaN gets the scale NaN and codes of 0, so that all of it is NaN when
// it is decoded, and leaves the errors of the block as they were. The same happens where the
// largest code times the scale, rounded to fp32, would be infinite: in int8, where the largest
// magnitude is the largest number of fp32.
//
// errors gets v - code * scale for the numbers v that were encoded: the product and the difference
// are fp32, each rounded. Their scales and codes follow the same rules.
struct EncodeWire {
  WireForm form = WireForm::kInt8;
  TensorView source, codes, errors;
};

// Decodes rows of codes, u8 [P, coded_bytes(form, n)], into numbers, rounded once, to nearest even.
// target: [P * n], fp32 or a compute type.
struct DecodeWire {
  WireForm form = WireForm::kInt8;
  TensorView codes, target;
};

// The same, but target [n] gets the sum over rows, added in their order in fp32:
// ((row 0 + row 1) + row 2) + ...
struct SumWire {
  WireForm form = WireForm::kInt8;
  TensorView codes, target;
};

}  // namespace terrace
