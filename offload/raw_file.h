#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

// One synchronous transfer, as pread and pwrite make it: it may be short or interrupted. Real: a
// file descriptor. Fakes: memory, and memory with faults.
namespace terrace {

// What transfers of real files and their fakes are multiples of, in memory and in the file: arenas
// and extents are laid out in it.
inline constexpr std::size_t kTransferAlignment = 4096;

class RawFile {
 public:
  virtual ~RawFile() = default;

  // Bytes carried, 0 at the end of the file, or a negative errno. Any thread.
  virtual std::int64_t read_at(std::span<std::byte> memory, std::uint64_t offset) noexcept = 0;
  virtual std::int64_t write_at(std::span<const std::byte> memory,
                                std::uint64_t offset) noexcept = 0;
  // What is carried at a time must be a multiple of this, a power of two, in memory and in the
  // file.
  virtual std::size_t alignment() const = 0;
};

}  // namespace terrace
