#pragma once

#include "offload/raw_file.h"
#include "offload/system_faults.h"

namespace terrace {

// Wraps another file and injects faults into its transfers.
class FaultyFile final : public RawFile {
 public:
  // Both outlive this object.
  FaultyFile(RawFile& upstream, SystemFaults& faults) : upstream_(upstream), faults_(faults) {}

  std::int64_t read_at(std::span<std::byte> memory, std::uint64_t offset) noexcept override;
  std::int64_t write_at(std::span<const std::byte> memory, std::uint64_t offset) noexcept override;
  std::size_t alignment() const override { return upstream_.alignment(); }

 private:
  RawFile& upstream_;
  SystemFaults& faults_;
};

}  // namespace terrace
