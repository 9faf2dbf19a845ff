#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "base/dtype.h"
#include "base/half.h"

namespace terrace {

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kF64;
};
template <>
struct DTypeOf<Bf16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct DTypeOf<Fp16> {
  static constexpr DType value = DType::kF16;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<std::int16_t> {
  static constexpr DType value = DType::kI16;
};
template <>
struct DTypeOf<std::byte> {
  static constexpr DType value = DType::kU8;
};

// A view of row-major, dense elements in some tier. It owns nothing; the code that made it decides
// how long the bytes live. Up to four dimensions; unused ones are 1.
struct TensorView {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  std::array<std::int64_t, 4> shape = {0, 1, 1, 1};

  std::int64_t elements() const { return shape[0] * shape[1] * shape[2] * shape[3]; }
  std::size_t size_bytes() const { return static_cast<std::size_t>(elements()) * size_of(dtype); }
  bool empty() const { return data == nullptr; }

  // Returns the elements as T; T must be the view's dtype.
  template <typename T>
  T* as() const {
    TERRACE_CHECK(DTypeOf<std::remove_const_t<T>>::value == dtype);
    return reinterpret_cast<T*>(data);
  }
};

inline TensorView view(std::byte* data, DType dtype, std::int64_t d0, std::int64_t d1 = 1,
                       std::int64_t d2 = 1) {
  return TensorView{data, dtype, {d0, d1, d2, 1}};
}

template <typename T>
TensorView view(std::span<T> elements) {
  return TensorView{reinterpret_cast<std::byte*>(elements.data()),
                    DTypeOf<T>::value,
                    {static_cast<std::int64_t>(elements.size()), 1, 1, 1}};
}

// Rows of `width` elements whose starts are `stride` elements apart, such as some columns of a
// matrix. Owns nothing.
struct StridedRows {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  std::int64_t stride = 0;

  bool empty() const { return data == nullptr; }
};

// Returns the columns [first, first + width) of a matrix whose rows are its first dimension.
inline StridedRows columns_of(const TensorView& matrix, std::int64_t first, std::int64_t width) {
  const std::int64_t stride = matrix.elements() / matrix.shape[0];
  TERRACE_CHECK_LE(first + width, stride);
  std::byte* const begin =
      matrix.empty() ? nullptr
                     : matrix.data + static_cast<std::size_t>(first) * size_of(matrix.dtype);
  return {begin, matrix.dtype, matrix.shape[0], width, stride};
}

// Returns all columns of a matrix, or no rows if the view is empty.
inline StridedRows whole_rows(const TensorView& matrix) {
  if (matrix.empty()) return {};
  return columns_of(matrix, 0, matrix.elements() / matrix.shape[0]);
}

}  // namespace terrace
