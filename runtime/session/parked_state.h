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
// empty, the session's own directories, less what `store` (null: nothing) takes of their budgets.
// Throws SessionError where there is none.
NvmeStoreOptions parking_of(const std::string& directory, const NvmeStoreOptions& own,
                            const BlockStore* store);

// Blocks of memory that a paused session has on drives, in files without a name: the system takes
// the space back however the process ends. Each block has a checksum that reading compares.
class ParkedState {
 public:
  static constexpr std::size_t kBlockBytes = std::size_t{16} << 20;

  // Makes room for blocks of these sizes, each a multiple of 4096. Throws OutOfMemory naming a
  // directory that has less room, and what make_nvme_store() throws. The log outlives it.
  ParkedState(NvmeStoreOptions where, std::span<const std::size_t> sizes, Log& log);

  // Write and read the blocks from number `first` on, each to or from a span of its size, and wait
  // for all. Throw IoError; read() also CorruptData.
  void write(std::size_t first, std::span<const std::span<std::byte>> blocks);
  void read(std::size_t first, std::span<const std::span<std::byte>> blocks);

 private:
  void transfer(IoRequest::Direction direction, std::size_t first,
                std::span<const std::span<std::byte>> blocks);

  std::unique_ptr<BlockStore> store_;
  std::vector<ExtentId> extents_;
};

// Cuts memory into blocks of at most ParkedState::kBlockBytes, and appends them.
void append_blocks(std::span<std::byte> memory, std::vector<std::span<std::byte>>& blocks);

}  // namespace terrace
