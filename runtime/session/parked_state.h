#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/log.h"
#include "offload/nvme_store.h"

namespace terrace {

// Returns where a paused session puts its memory: a directory that the caller names, or, if that is
// empty, the session's own directories. Their budgets are then reduced by the bytes that their
// store has `used` (none where there is no store). Throws SessionError where there is no directory.
NvmeStoreOptions parking_of(const std::string& directory, const NvmeStoreOptions& own,
                            std::span<const StorePath> used);

// Memory that a paused session has put on drives, in files without a name: the system takes the
// space back however the process ends. Each block has a checksum, which is compared when it is
// read.
class ParkedState {
 public:
  static constexpr std::size_t kBlockBytes = std::size_t{16} << 20;

  // Writes these ranges of memory, each of a multiple of 4096 bytes. With no ranges it makes no
  // file and touches no drive. Throws OutOfMemory, which names a directory with too little room,
  // IoError, and what make_nvme_store() throws. The log outlives it.
  ParkedState(const NvmeStoreOptions& where, std::span<const std::span<std::byte>> memory,
              Log& log);

  // Reads all of it back to where it was. Throws IoError, CorruptData: only a part is there then.
  void read() { transfer(IoRequest::Direction::kRead); }

 private:
  void transfer(IoRequest::Direction direction);

  std::vector<std::span<std::byte>> blocks_;
  std::unique_ptr<BlockStore> store_;
  std::vector<ExtentId> extents_;
};

}  // namespace terrace
