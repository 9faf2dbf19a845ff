#pragma once

#include <cstdint>

namespace terrace {

// What a micro-batch says of each row, one list behind the other in its part of the tokens buffer.
enum class RowNumbers : std::uint8_t {
  kTokens,
  kTargets,    // the token that is to come; negative: not counted
  kPositions,  // of the row in its document or its sequence, from 0 on
  kFirstKeys,  // the row of its sequence that its document begins with
};

// A micro-batch: B sequences of T positions each.
struct BatchShape {
  std::int64_t sequences = 1;
  std::int64_t positions = 1;
  // Ranks that share the rows of what is not tensor-parallel: those of sequence parallelism.
  std::int64_t row_parts = 1;
  // Sequences hold several documents, which do not see each other: a micro-batch's numbers say of
  // each row where it stands in its document, and where that begins.
  bool has_documents = false;
  // Not 0: a forward computes `positions` new rows of one sequence. Keys and values of the rows
  // before them are kept, with room for so many rows in all; a micro-batch's numbers say of each
  // new row where it stands, and the head computes the last row alone.
  std::int64_t kept_positions = 0;
  // Not 0: behind its numbers a micro-batch has so many fp32 numbers of each row, the rotary angles
  // for the length of the row's document (rope_rows.h). There are no rotary tables then.
  std::int64_t row_angles = 0;

  bool keeps_keys() const { return kept_positions > 0; }
  // Rows of the rotary tables.
  std::int64_t table_positions() const { return keeps_keys() ? kept_positions : positions; }
  std::int64_t rows() const { return sequences * positions; }
  std::int64_t own_rows() const { return rows() / row_parts; }
  // Lists of a micro-batch's numbers (RowNumbers), each i32 [rows].
  std::int64_t number_lists() const {
    if (has_documents) return 4;
    return keeps_keys() ? 3 : 2;
  }
  // The same with the angles, each of which takes as much as a number.
  std::int64_t lists() const { return number_lists() + row_angles; }
};

}  // namespace terrace
