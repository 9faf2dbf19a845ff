#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "offload/block_store.h"
#include "offload/system_faults.h"

namespace terrace {

enum class IoEngineKind : std::uint8_t { kAuto, kIoUring, kPosix };

struct NvmeDirectory {
  std::string path;
  std::optional<std::size_t> budget_bytes;  // at most this much of the directory
};

struct NvmeStoreOptions {
  std::vector<NvmeDirectory> directories;     // two or more: blocks are striped over them
  IoEngineKind engine = IoEngineKind::kAuto;  // auto: io_uring, else posix with a remark
  int queue_depth = 32;                       // blocks in flight per directory
  bool checksums = true;
  double stall_seconds = 10;       // a transfer that takes longer is named in the log, once
  SystemFaults* faults = nullptr;  // for tests: below the engines; outlives the store
};

// The store that training uses: striped files with checksums in a job-unique subdirectory
// ("terrace-<pid>-<random>", held by a lock file) of each directory. The files are removed when the
// store is destroyed. Directories of dead owners (lock free) are removed first and named in the
// log. Throws ConfigError for a directory that is not there or not writable, and for an engine that
// was asked for by name and is refused by the system. `log` outlives the store.
std::unique_ptr<BlockStore> make_nvme_store(const NvmeStoreOptions& options, Log& log);

// Extents in memory: for tests.
std::unique_ptr<BlockStore> make_memory_store();

// A store made of memory with faults injected below its checksums.
std::unique_ptr<BlockStore> make_faulty_store(const FaultPlan& plan);

}  // namespace terrace
