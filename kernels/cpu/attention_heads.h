#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "kernels/cpu/packed_strips.h"
#include "kernels/kernel_table.h"

// Where the rows of attention heads lie, and how the heads' keys and values are packed for the
// products.
namespace terrace {

// Keys that a strip of queries is multiplied with at a time, and that a task packs.
inline constexpr std::int64_t kPanel = 512;

// One head of one batch row: where its rows lie, and how far they are apart.
struct Head {
  std::int64_t b = 0, h = 0, g = 0;
};

// Returns element `at` of a vector of fp32 or bf16.
inline float number_at(const TensorView& numbers, std::int64_t at) {
  if (numbers.dtype == DType::kF32) return numbers.as<const float>()[at];
  return to_float(numbers.as<const Bf16>()[at]);
}

class HeadRows {
 public:
  HeadRows(const AttentionShape& shape, DType dtype)
      : shape_(shape), dtype_(dtype), bytes_(static_cast<std::int64_t>(size_of(dtype))) {
    TERRACE_CHECK_EQ(shape.heads % shape.key_value_heads, 0);
    TERRACE_CHECK_LE(shape.queries, shape.keys);
    TERRACE_CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  }

  DType dtype() const { return dtype_; }
  std::int64_t out_stride() const { return shape_.heads * shape_.head_width; }

  // Return where query t begins, in queries or their gradients, and where key t begins, in keys,
  // values or their gradients.
  std::byte* query(const StridedRows& rows, const Head& head, std::int64_t t) const {
    return at(rows, head.b * shape_.queries + t, head.h);
  }
  std::byte* key(const StridedRows& rows, const Head& head, std::int64_t t) const {
    return at(rows, head.b * shape_.keys + t, head.g);
  }
  std::byte* out(std::byte* out, const Head& head, std::int64_t t) const {
    const std::int64_t row = head.b * shape_.queries + t;
    return out + (row * out_stride() + head.h * shape_.head_width) * bytes_;
  }
  float* statistic(float* log_sum_exp, const Head& head, std::int64_t t) const {
    return log_sum_exp + (head.b * shape_.heads + head.h) * shape_.queries + t;
  }
  // Checks three matrices: queries, keys and values, or their gradients.
  void check(const StridedRows& q, const StridedRows& k, const StridedRows& v) const {
    check(q, shape_.batch * shape_.queries, shape_.heads);
    check(k, shape_.batch * shape_.keys, shape_.key_value_heads);
    check(v, shape_.batch * shape_.keys, shape_.key_value_heads);
  }
  void check(const TensorView& out, const TensorView& log_sum_exp) const {
    const std::int64_t rows = shape_.batch * shape_.queries;
    TERRACE_CHECK(out.dtype == dtype_);
    TERRACE_CHECK_EQ(out.elements(), rows * out_stride());
    TERRACE_CHECK_EQ(log_sum_exp.elements(), rows * shape_.heads);
  }
  // Checks AttentionRule::sinks.
  void check_sinks(const TensorView& sinks) const {
    if (sinks.empty()) return;
    TERRACE_CHECK(sinks.dtype == dtype_);
    TERRACE_CHECK_EQ(sinks.elements(), shape_.heads);
  }

 private:
  std::byte* at(const StridedRows& rows, std::int64_t row, std::int64_t index) const {
    return rows.data + (row * rows.stride + index * shape_.head_width) * bytes_;
  }
  void check(const StridedRows& rows, std::int64_t count, std::int64_t heads) const {
    TERRACE_CHECK(rows.dtype == dtype_);
    TERRACE_CHECK_EQ(rows.rows, count);
    TERRACE_CHECK_EQ(rows.width, heads * shape_.head_width);
  }

  AttentionShape shape_;
  DType dtype_;
  std::int64_t bytes_;
};

// The first keys that some queries of a sequence see, according to the window and the documents of
// a rule.
class FirstKeys {
 public:
  FirstKeys(const AttentionShape& shape, const AttentionRule& rule);

  // Finds the first keys of `count` queries, at most kQueriesMax, from `query` on in sequence b.
  void look(std::int64_t b, std::int64_t query, std::int64_t count);

  // Returns the first key that any of the queries sees.
  std::int64_t first() const { return first_; }
  // Returns the first key of each query, from the `query`-th on, or null where all of them see all
  // keys from `key` up to their own.
  const std::int64_t* from(std::int64_t query, std::int64_t key) const {
    return last_ <= key ? nullptr : keys_ + query;
  }

 private:
  static constexpr std::int64_t kQueriesMax = 128;

  std::int64_t positions_before_;  // of a sequence's first query
  std::int64_t queries_;           // of a sequence
  std::int64_t window_;
  const std::int32_t* starts_ = nullptr;  // of documents
  std::int64_t first_ = 0, last_ = 0;     // the least and the greatest of keys_
  std::int64_t keys_[kQueriesMax] = {};
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
  // Returns the number of elements from one strip to the next.
  std::int64_t stride() const {
    return strip_elements(columns_ == Columns::kKeys ? shape_.head_width : shape_.keys);
  }
  // Returns the operand of a head from key t on; t is a multiple of kStrip.
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
    return strips_of(shape_.keys) * strips_of(shape_.head_width) * kStepElements;
  }

  AttentionShape shape_;
  Columns columns_;
  const StripCode& code_;
};

// One packing of the keys or of the values.
struct PackedPart {
  PackedHeads heads;
  StridedRows rows;
  std::size_t offset = 0;  // in the workspace
};

// Packs the parts of all heads, on all workers.
void pack_all(const KernelContext& context, const HeadRows& rows, const AttentionShape& shape,
              std::span<const PackedPart> parts);

}  // namespace terrace
