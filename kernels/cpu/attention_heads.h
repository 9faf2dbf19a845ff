#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "kernels/cpu/packed_strips.h"
#include "kernels/kernel_table.h"

// Where the heads of attention have their rows, and their keys and values packed for the products.
namespace terrace {

// Keys that a strip of queries meets at a time, and that a task packs.
inline constexpr std::int64_t kPanel = 512;

// One head of one batch row: where its rows lie, and how far they are apart.
struct Head {
  std::int64_t b = 0, h = 0, g = 0;
};

class HeadRows {
 public:
  HeadRows(const AttentionShape& shape, DType dtype)
      : shape_(shape), dtype_(dtype), bytes_(static_cast<std::int64_t>(size_of(dtype))) {
    TERRACE_CHECK_EQ(shape.heads % shape.key_value_heads, 0);
    TERRACE_CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  }

  DType dtype() const { return dtype_; }
  std::int64_t qkv_stride() const {
    return (shape_.heads + 2 * shape_.key_value_heads) * shape_.head_width;
  }
  std::int64_t out_stride() const { return shape_.heads * shape_.head_width; }

  std::byte* query(std::byte* qkv, const Head& head, std::int64_t t) const {
    return at(qkv, head, t, head.h);
  }
  std::byte* key(std::byte* qkv, const Head& head, std::int64_t t) const {
    return at(qkv, head, t, shape_.heads + head.g);
  }
  std::byte* value(std::byte* qkv, const Head& head, std::int64_t t) const {
    return at(qkv, head, t, shape_.heads + shape_.key_value_heads + head.g);
  }
  std::byte* out(std::byte* out, const Head& head, std::int64_t t) const {
    const std::int64_t row = head.b * shape_.sequence + t;
    return out + (row * out_stride() + head.h * shape_.head_width) * bytes_;
  }
  float* statistic(float* log_sum_exp, const Head& head, std::int64_t t) const {
    return log_sum_exp + (head.b * shape_.heads + head.h) * shape_.sequence + t;
  }
  void check(const TensorView& qkv, const TensorView& out, const TensorView& log_sum_exp) const {
    const std::int64_t rows = shape_.batch * shape_.sequence;
    TERRACE_CHECK(qkv.dtype == dtype_ && out.dtype == dtype_);
    TERRACE_CHECK_EQ(qkv.elements(), rows * qkv_stride());
    TERRACE_CHECK_EQ(out.elements(), rows * out_stride());
    TERRACE_CHECK_EQ(log_sum_exp.elements(), rows * shape_.heads);
  }

 private:
  std::byte* at(std::byte* qkv, const Head& head, std::int64_t t, std::int64_t index) const {
    const std::int64_t row = head.b * shape_.sequence + t;
    return qkv + (row * qkv_stride() + index * shape_.head_width) * bytes_;
  }

  AttentionShape shape_;
  DType dtype_;
  std::int64_t bytes_;
};

// Keys or values of all key-value heads as right operands, packed once for all queries.
class PackedHeads {
 public:
  enum class Columns : std::uint8_t { kKeys, kWidth };  // the depth is the other

  PackedHeads(const AttentionShape& shape, Columns columns, const StripCode& code)
      : shape_(shape), columns_(columns), code_(code) {}

  std::int64_t bytes() const {
    return code_.bytes(shape_.batch * shape_.key_value_heads * head_elements());
  }
  // Elements from one strip to the next.
  std::int64_t stride() const {
    return strip_elements(columns_ == Columns::kKeys ? shape_.head_width : shape_.sequence);
  }
  // The operand of a head from key t on, a multiple of kStrip.
  std::byte* from(std::byte* packed, const Head& head, std::int64_t t) const {
    const std::int64_t first = (head.b * shape_.key_value_heads + head.g) * head_elements();
    const std::int64_t along =
        columns_ == Columns::kKeys ? t / kStrip * stride() : t / kStrip * kStepElements;
    return packed + code_.bytes(first + along);
  }
  // Packs `count` keys from `t` on, a multiple of kStrip, whose rows begin at `source`.
  void pack(const PackStrip& source, std::byte* packed, const Head& head, std::int64_t t,
            std::int64_t count) const;

 private:
  std::int64_t head_elements() const {
    return strips_of(shape_.sequence) * strips_of(shape_.head_width) * kStepElements;
  }

  AttentionShape shape_;
  Columns columns_;
  const StripCode& code_;
};

// One packing of keys or of values.
struct PackedPart {
  PackedHeads heads;
  bool values = false;
  std::size_t offset = 0;  // in the workspace
};

// Packs the parts of all heads, on all workers.
void pack_all(const KernelContext& context, const HeadRows& rows, const AttentionShape& shape,
              std::byte* qkv, std::span<const PackedPart> parts);

}  // namespace terrace
