#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "offload/nvme_store.h"
#include "offload/raw_file.h"

namespace terrace {

// Injects faults into the transfers of another file. A draw depends on the seed, the place in the
// file and how often that place was used, not on the order in which threads arrive.
class FaultyFile final : public RawFile {
 public:
  // `upstream` outlives this.
  FaultyFile(RawFile& upstream, const FaultPlan& plan) : upstream_(upstream), plan_(plan) {}

  std::int64_t read_at(std::span<std::byte> memory, std::uint64_t offset) noexcept override;
  std::int64_t write_at(std::span<const std::byte> memory, std::uint64_t offset) noexcept override;
  std::size_t alignment() const override { return upstream_.alignment(); }

 private:
  // What happens to one transfer.
  struct Fate {
    bool fails = false;
    bool corrupts = false;
    bool delays = false;
    bool shortens = false;
    std::uint32_t dice = 0;  // for where, and how much
  };

  Fate draw(std::uint64_t offset, std::uint32_t direction);
  std::size_t shortened(std::size_t size, std::uint32_t dice) const;
  static void wait_a_little(std::uint32_t dice);

  RawFile& upstream_;
  const FaultPlan plan_;
  std::mutex mutex_;
  std::map<std::uint64_t, std::uint32_t> uses_;  // of each offset; guarded by mutex_
};

}  // namespace terrace
