#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "memory/tensor.h"

namespace terrace::test {

using Shape = std::array<std::int64_t, 4>;

inline Shape shape(std::int64_t d0, std::int64_t d1 = 1, std::int64_t d2 = 1, std::int64_t d3 = 1) {
  return {d0, d1, d2, d3};
}

// Uniform numbers in [-1, 1) from a seed.
class Random {
 public:
  explicit Random(std::uint64_t seed) : seed_(seed) {}
  double uniform();
  std::int32_t below(std::int32_t bound);

 private:
  std::uint64_t seed_;
  std::uint64_t index_ = 0;
};

// A tensor that owns its bytes, for tests. It begins one element past a boundary and ends where its
// allocation ends: kernels may assume neither more than an element's alignment nor padding.
class HostTensor {
 public:
  HostTensor(DType dtype, Shape shape);
  HostTensor(const HostTensor& other);
  HostTensor(HostTensor&&) = default;
  HostTensor& operator=(HostTensor&&) = default;
  HostTensor& operator=(const HostTensor&) = delete;

  static HostTensor random(DType dtype, Shape shape, Random& random, double scale = 1.0);
  // Returns i32 indices in [0, bound).
  static HostTensor random_indices(Shape shape, Random& random, std::int32_t bound);

  const TensorView& view() const { return view_; }
  std::int64_t elements() const { return view_.elements(); }
  double at(std::int64_t i) const;
  void set(std::int64_t i, double value);  // rounded to nearest even
  std::vector<double> values() const;
  std::span<const std::byte> bytes() const { return {view_.data, view_.size_bytes()}; }
  // Sets every byte to 0xFF: a NaN in each floating-point type.
  void fill_garbage();

  // Returns a copy that begins on a boundary of 64 bytes.
  HostTensor on_boundary() const;

  // Returns the same values in fp64; integers stay as they are.
  HostTensor widened() const;

 private:
  std::vector<std::byte> storage_;
  TensorView view_;
};

// Returns fp64 if `dtype` is a floating-point type, else `dtype`.
DType widened(DType dtype);

}  // namespace terrace::test
