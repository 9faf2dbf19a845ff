#pragma once

#include <cstddef>
#include <span>

#include "base/function_ref.h"
#include "parallel/communicator.h"

namespace terrace {

// A collective of ranks that can read each other's memory. Every rank copies the data that it needs
// directly from the memory of the others, once, and reduces its own part in rank order. The work
// goes in phases: no rank begins a phase before all have ended the one before, and no rank returns
// before all have ended the last.
class DirectExchange {
 public:
  // The places of the bytes of a rank's call, as addresses of that rank's process.
  struct Buffers {
    const std::byte* source = nullptr;
    const std::byte* target = nullptr;
  };
  // Copies from an address of another rank's process; throws if that fails.
  using Read = FunctionRef<void(int rank, const std::byte* from, std::span<std::byte> to)>;
  struct Setting {
    CollectiveCall call;
    int rank = 0;
    std::span<const Buffers> buffers;     // by rank
    std::span<std::byte> scratch;         // a cache line or more for each rank
    std::span<const std::byte*> sources;  // room for one per rank
  };

  // The objects that `setting` and `read` refer to must outlive the exchange. The call is not a
  // send or recv.
  DirectExchange(const Setting& setting, Read read) : setting_(setting), read_(read) {}

  // The same number on all ranks.
  int phases() const { return setting_.call.kind == CollectiveKind::kAllReduce ? 2 : 1; }
  void run(int phase);

 private:
  int size() const { return static_cast<int>(setting_.buffers.size()); }
  const Buffers& buffers_of(int rank) const {
    return setting_.buffers[static_cast<std::size_t>(rank)];
  }
  void gather();
  void broadcast();
  void transpose();
  // Reduces this rank's part of the sources: `bytes` from `offset` on.
  void reduce(std::size_t offset, std::size_t bytes, std::byte* target);
  void gather_reduced();
  void move(int from, const std::byte* address, std::span<std::byte> to);

  const Setting setting_;
  const Read read_;
};

}  // namespace terrace
