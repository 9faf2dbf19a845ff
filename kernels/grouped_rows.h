#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/check.h"
#include "memory/tensor.h"

namespace terrace {

// The groups that a norm works on, one after the other: unit u is the group u mod groups of row
// u / groups, and each has `width` elements. Owns nothing; a view of empty rows is empty.
template <typename T>
class GroupedRows {
 public:
  GroupedRows(const StridedRows& rows, std::int64_t width)
      : data_(reinterpret_cast<T*>(rows.data)),
        stride_(rows.stride),
        width_(width),
        groups_(rows.empty() ? 1 : rows.width / width) {
    TERRACE_CHECK(rows.empty() || DTypeOf<std::remove_const_t<T>>::value == rows.dtype);
  }

  bool empty() const { return data_ == nullptr; }
  // Returns the first element of a unit.
  T* at(std::int64_t unit) const {
    if (groups_ == 1) return data_ + unit * stride_;
    return data_ + unit / groups_ * stride_ + unit % groups_ * width_;
  }
  // Returns the first element of a unit, or null where the view is empty.
  T* at_or_null(std::int64_t unit) const { return empty() ? nullptr : at(unit); }

 private:
  T* data_;
  std::int64_t stride_, width_, groups_;
};

// Returns the number of units in a norm's rows, after checking that rows are whole groups of
// `width` elements.
inline std::int64_t checked_units(const StridedRows& rows, std::int64_t width) {
  TERRACE_CHECK_LT(0, width);
  TERRACE_CHECK_EQ(rows.width % width, 0);
  return rows.rows * (rows.width / width);
}

// Checks that `other` has as many rows of the same width and type as `rows`.
inline void check_same_rows(const StridedRows& other, const StridedRows& rows) {
  TERRACE_CHECK_EQ(other.rows, rows.rows);
  TERRACE_CHECK_EQ(other.width, rows.width);
  TERRACE_CHECK(other.dtype == rows.dtype);
}

// Returns the number of parts of a divided norm in `sums` [parts, rows], or 0 where it is empty. In
// a divided norm one group is the whole row, and the whole width is known.
inline std::int64_t checked_parts(const TensorView& sums, const StridedRows& rows,
                                  std::int64_t width, std::int64_t total_width) {
  if (sums.empty()) return 0;
  TERRACE_CHECK_EQ(rows.width, width);
  TERRACE_CHECK_LE(width, total_width);
  TERRACE_CHECK_EQ(sums.elements() % rows.rows, 0);
  return sums.elements() / rows.rows;
}

}  // namespace terrace
