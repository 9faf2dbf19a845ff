#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "offload/block_store.h"
#include "offload/io_engine.h"

namespace terrace {

// The files that hold the blocks of a striped store: one per stripe, each with an engine of its
// own. The real ones are files in job directories; the fake is memory.
class StripeFiles {
 public:
  // Destroys the engines before the files. Nothing is in flight.
  virtual ~StripeFiles() = default;

  virtual std::size_t count() const = 0;
  // Gives every file its size. Throws OutOfMemory and leaves nothing behind.
  virtual void prepare(std::span<const std::uint64_t> sizes) = 0;
  virtual IoEngine& engine(std::size_t stripe) = 0;
  // Returns the name of the file, for outcomes.
  virtual const std::string& file_name(std::size_t stripe) const = 0;
  // A power of two that is a multiple of the alignment of every file.
  virtual std::size_t alignment() const = 0;
  // Extents begin in the files at multiples of this: a power of two, the alignment or more.
  virtual std::size_t spacing() const = 0;
  virtual std::vector<StorePath> paths() const = 0;
};

}  // namespace terrace
