#pragma once

#include <cstdint>

namespace terrace {

// The lists of a micro-batch, which have a number for each row. They are one after the other in the
// micro-batch's part of the tokens buffer.
enum class RowNumbers : std::uint8_t {
  kTokens,
  kTargets,    // the next token; negative: not counted
  kPositions,  // the row's place in its document or its sequence, from 0 on
  kFirstKeys,  // the row of its sequence that its document begins with
  // The number that the row's sample has in the run, modulo 2^31; negative: nothing is dropped in
  // the row.
  kSamples,
};

// A micro-batch: B sequences of T positions each.
struct BatchShape {
  std::int64_t sequences = 1;
  std::int64_t positions = 1;
  // The number of ranks that share the rows of everything that is not tensor-parallel: the ranks of
  // sequence parallelism.
  std::int64_t row_parts = 1;
  // Whether sequences hold several documents, which do not see each other. Then a micro-batch's
  // numbers say, for each row, where it stands in its document, and where that document begins.
  bool has_documents = false;
  // Whether a micro-batch has the list kSamples, which dropout needs.
  bool has_samples = false;
  // If not 0, a forward computes `positions` new rows of one sequence. Keys and values of the rows
  // before them are kept, with room for this many rows in all. A micro-batch's numbers then say
  // where each new row stands, and the head computes only the last row.
  std::int64_t kept_positions = 0;
  // If not 0, a micro-batch has, after its numbers, this many fp32 numbers for each row: the
  // rotary angles for the length of the row's document (rope_rows.h). There are no rotary tables
  // then.
  std::int64_t row_angles = 0;

  bool keeps_keys() const { return kept_positions > 0; }
  // Returns the number of rows of the rotary tables.
  std::int64_t table_positions() const { return keeps_keys() ? kept_positions : positions; }
  std::int64_t rows() const { return sequences * positions; }
  std::int64_t own_rows() const { return rows() / row_parts; }
  // Returns the number of a micro-batch's lists of numbers (RowNumbers), each i32 [rows].
  std::int64_t number_lists() const { return lists_before_samples() + (has_samples ? 1 : 0); }
  // Returns the same with the angles, each of which takes as much room as a number.
  std::int64_t lists() const { return number_lists() + row_angles; }
  // Returns the place of a list of numbers among the others, from 0 on; -1 if there is none.
  std::int64_t place_of(RowNumbers list) const {
    const auto place = static_cast<std::int64_t>(list);
    const std::int64_t before = lists_before_samples();
    if (list == RowNumbers::kSamples) return has_samples ? before : -1;
    return place < before ? place : -1;
  }

 private:
  std::int64_t lists_before_samples() const {
    if (has_documents) return 4;
    return keeps_keys() ? 3 : 2;
  }
};

}  // namespace terrace
