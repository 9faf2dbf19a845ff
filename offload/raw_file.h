#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

// One synchronous transfer, with the semantics of pread and pwrite: it may be short or interrupted.
// The real file is a file descriptor. The fakes are memory, and memory with faults.
namespace terrace {

// Transfers of real files and of their fakes are multiples of this, in memory and in the file.
// Arenas and extents are laid out in it.
inline constexpr std::size_t kTransferAlignment = 4096;

class RawFile {
 public:
  virtual ~RawFile() = default;

  // Return the bytes transferred, 0 at the end of the file, or a negative errno. Any thread.
  virtual std::int64_t read_at(std::span<std::byte> memory, std::uint64_t offset) noexcept = 0;
  virtual std::int64_t write_at(std::span<const std::byte> memory,
                                std::uint64_t offset) noexcept = 0;
  // A transfer's place and size must be multiples of this, a power of two, in memory and in the
  // file.
  virtual std::size_t alignment() const = 0;
};

}  // namespace terrace
