#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "offload/raw_file.h"

namespace terrace {

// A file in memory, for tests. Several threads may make transfers that do not overlap.
class MemoryFile final : public RawFile {
 public:
  // The same alignment as a drive demands, so that misuse shows in tests too.
  static constexpr std::size_t kAlignment = kTransferAlignment;

  std::int64_t read_at(std::span<std::byte> memory, std::uint64_t offset) noexcept override;
  std::int64_t write_at(std::span<const std::byte> memory, std::uint64_t offset) noexcept override;
  std::size_t alignment() const override { return kAlignment; }

  void resize(std::uint64_t size_bytes) { bytes_.resize(size_bytes); }

 private:
  std::size_t available(std::size_t wanted, std::uint64_t offset) const;

  std::vector<std::byte> bytes_;
};

}  // namespace terrace
