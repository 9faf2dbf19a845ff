#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/log.h"
#include "offload/block_store.h"
#include "offload/system_faults.h"

namespace terrace {

enum class IoEngineKind : std::uint8_t { kAuto, kIoUring, kPosix };

struct NvmeDirectory {
  std::string path;
  std::optional<std::size_t> budget_bytes;  // at most this much of the directory
};

// Whether and how the drives are measured at the start.
struct NvmeProbeOptions {
  // A store that holds less is not worth the time to measure: it has the usual shape, 32 blocks of
  // 1 MiB.
  std::uint64_t from_bytes = kGiB;
  std::uint64_t write_bytes = 256 * kMiB;  // at most, on each drive
  // The directory that keeps the measurements; if not set, the user's cache directory.
  std::optional<std::string> record_directory = {};
};

struct NvmeStoreOptions {
  std::vector<NvmeDirectory> directories;     // two or more: blocks are striped over them
  IoEngineKind engine = IoEngineKind::kAuto;  // auto: io_uring, else posix with a remark
  std::optional<int> queue_depth = {};        // pieces in flight per drive; nothing: measured
  std::uint64_t expected_bytes = 0;           // that the extents will hold together; 0: not known
  NvmeProbeOptions probe = {};
  bool checksums = true;
  // Whether the files keep their names. If not, they and their directories are unlinked as soon as
  // they are open, so the system takes the space back however the process ends.
  bool named_files = true;
  double stall_seconds = 10;       // a transfer that takes longer is named in the log, once
  SystemFaults* faults = nullptr;  // for tests: below the engines; outlives the store
};

// Makes the store that training uses: striped files with checksums in a job-unique subdirectory
// ("terrace-<pid>-<random>", held by a lock file) of each directory. The files are removed when the
// store is destroyed, or at once (named_files). Directories of dead owners (lock free) are removed
// first and named in the log. Throws ConfigError for a directory that does not exist or is not
// writable, and for an engine that was asked for by name and is refused by the system. If
// `expected_bytes` is large enough, block size, depth and the directories' shares are the best ones
// measured for each drive, now or by an earlier start. The findings are written to the log, which
// outlives the store.
std::unique_ptr<BlockStore> make_nvme_store(const NvmeStoreOptions& options, Log& log);

// Makes a store with extents in memory, for tests.
std::unique_ptr<BlockStore> make_memory_store();

// Makes a store in memory, with faults injected below its checksums.
std::unique_ptr<BlockStore> make_faulty_store(const FaultPlan& plan);

}  // namespace terrace
