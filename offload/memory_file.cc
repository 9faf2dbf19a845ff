#include "offload/memory_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace terrace {

std::size_t MemoryFile::available(std::size_t wanted, std::uint64_t offset) const {
  return offset >= bytes_.size() ? 0 : std::min<std::size_t>(wanted, bytes_.size() - offset);
}

std::int64_t MemoryFile::read_at(std::span<std::byte> memory, std::uint64_t offset) noexcept {
  if (memory.size() % kAlignment != 0 || offset % kAlignment != 0) return -EINVAL;
  const std::size_t bytes = available(memory.size(), offset);
  if (bytes > 0) std::memcpy(memory.data(), bytes_.data() + offset, bytes);
  return static_cast<std::int64_t>(bytes);
}

std::int64_t MemoryFile::write_at(std::span<const std::byte> memory,
                                  std::uint64_t offset) noexcept {
  if (memory.size() % kAlignment != 0 || offset % kAlignment != 0) return -EINVAL;
  const std::size_t bytes = available(memory.size(), offset);
  if (bytes == 0) return -ENOSPC;
  std::memcpy(bytes_.data() + offset, memory.data(), bytes);
  return static_cast<std::int64_t>(bytes);
}

}  // namespace terrace
