#pragma once

#include <cstdint>

namespace terrace {

// What a micro-batch says of each row, one list behind the other in its part of the tokens buffer.
enum class RowNumbers : std::uint8_t {
  kTokens,
  kTargets,    // the token that is to come; negative: not counted
  kPositions,  // of the row in its document, from 0 on
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

  std::int64_t rows() const { return sequences * positions; }
  std::int64_t own_rows() const { return rows() / row_parts; }
  // Lists of a micro-batch's numbers (RowNumbers), each i32 [rows].
  std::int64_t lists() const { return has_documents ? 4 : 2; }
};

}  // namespace terrace
