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

// Where a paused session puts its memory: a directory that the caller names, or, where that is
// empty, the session's own directories, less what their store has `used` of their budgets (nothing:
// there is no store). Throws SessionError where there is none.
NvmeStoreOptions parking_of(const std::string& directory, const NvmeStoreOptions& own,
                            std::span<const StorePath> used);

// Memory that a paused session has on drives, in files without a name: the system takes the space
// back however the process ends. Each block of it has a checksum that reading compares.
class ParkedState {
 public:
  static constexpr std::size_t kBlockBytes = std::size_t{16} << 20;

  // Writes these ranges of memory, each of a multiple of 4096 bytes; none: there is no file, and
  // no drive is touched. Throws OutOfMemory naming a directory that has less room, IoError, and
  // what make_nvme_store() throws. The log outlives it.
  ParkedState(const NvmeStoreOptions& where, std::span<const std::span<std::byte>> memory,
              Log& log);

  // Reads all of it back to where it was. Throws IoError, CorruptData: a part is then there.
  void read() { transfer(IoRequest::Direction::kRead); }

 private:
  void transfer(IoRequest::Direction direction);

  std::vector<std::span<std::byte>> blocks_;
  std::unique_ptr<BlockStore> store_;
  std::vector<ExtentId> extents_;
};

}  // namespace terrace
