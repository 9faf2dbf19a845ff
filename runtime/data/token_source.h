#pragma once

#include <cstdint>
#include <span>

namespace terrace {

// A long read-only sequence of token ids. Thread-safe.
class TokenSource {
 public:
  virtual ~TokenSource() = default;

  virtual std::int64_t count() const = 0;
  // Whether the ids are the bytes of a text.
  virtual bool is_text() const { return false; }

  // Fills `out` with tokens [offset, offset + out.size()), a range inside the sequence. Throws
  // IoError when a file cannot be read, ConfigError for an id that is not below the vocabulary.
  virtual void read(std::int64_t offset, std::span<std::int32_t> out) const = 0;
};

}  // namespace terrace
