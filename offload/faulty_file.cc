#include "offload/faulty_file.h"

namespace terrace {

std::int64_t FaultyFile::read_at(std::span<std::byte> memory, std::uint64_t offset) noexcept {
  return transfer_with(
      &faults_, {SystemCall::Kind::kRead, offset, memory.size()}, memory,
      [&](std::size_t bytes) { return upstream_.read_at(memory.first(bytes), offset); });
}

std::int64_t FaultyFile::write_at(std::span<const std::byte> memory,
                                  std::uint64_t offset) noexcept {
  return transfer_with(
      &faults_, {SystemCall::Kind::kWrite, offset, memory.size()}, {},
      [&](std::size_t bytes) { return upstream_.write_at(memory.first(bytes), offset); });
}

}  // namespace terrace
