#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/model/decoder_options.h"
#include "runtime/model/rope_options.h"

// Rotary angles of single rows, for models whose longer documents have other frequencies. A
// document then has the angles of its own length, whatever is packed or padded around it.
namespace terrace {

// Returns how many fp32 numbers each row of a micro-batch needs (BatchShape::row_angles) where
// documents have up to `length` rows: rotary_width for each of the model's ropes. 0 where all of
// these documents have the same frequencies, so that one table serves them.
std::int64_t row_angles(const DecoderOptions& model, std::int64_t length);

// Fills in these numbers. For one thread.
class RopeRows {
 public:
  RopeRows(std::vector<RopeOptions> ropes, std::int64_t rotary_width);

  // `lengths` has, for each row, the number of rows of its document. A document's rows are
  // neighbours. Writes for each rope a table [rows, rotary_width] of fp32 as fill_rope_table()
  // makes it. Each row has the angles of its place in its document.
  void fill(std::span<const std::int32_t> lengths, std::span<std::byte> out);

 private:
  // A table of the first positions, with the frequencies that it was made for.
  struct Table {
    std::vector<float> frequencies;
    std::vector<float> rows;
  };
  // All short documents share one table. For longer documents, only the last one's table is kept.
  using Tables = std::array<Table, 2>;

  std::span<const float> table_of(std::size_t rope, std::int64_t length);

  const std::vector<RopeOptions> ropes_;
  const std::int64_t rotary_width_;
  std::vector<Tables> tables_;  // by rope
};

}  // namespace terrace
