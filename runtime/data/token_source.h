#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/function_ref.h"

namespace terrace {

// A long read-only sequence of token ids. Thread-safe.
class TokenSource {
 public:
  virtual ~TokenSource() = default;

  virtual std::int64_t count() const = 0;
  // Returns whether the ids are the bytes of a text.
  virtual bool is_text() const { return false; }

  // Fills `out` with tokens [offset, offset + out.size()), a range inside the sequence. Throws
  // IoError when a file cannot be read, ConfigError for an id that is not below the vocabulary.
  virtual void read(std::int64_t offset, std::span<std::int32_t> out) const = 0;

  // Returns whether something says which tokens are trained on.
  virtual bool has_mask() const { return false; }
  // Fills `out` for the same range: 1 for a token that is trained on, as a target, and 0 for one
  // that is only read. Throws IoError, and CorruptData for other values.
  virtual void read_mask(std::int64_t /*offset*/, std::span<std::uint8_t> out) const {
    std::ranges::fill(out, 1);
  }

  // Returns whether it is known where documents end.
  virtual bool has_documents() const { return false; }
  // Calls `visit` with the end of each document in turn: the number of tokens up to there. The last
  // end is count(). Where ends are not known, everything is one document. Throws IoError,
  // CorruptData.
  virtual void visit_documents(FunctionRef<void(std::int64_t end)> visit) const { visit(count()); }
};

}  // namespace terrace
