#include "offload/nvme_store.h"

#include "base/bytes.h"
#include "base/error.h"
#include "offload/slot_files.h"
#include "offload/striped_store.h"

namespace terrace {
namespace {

constexpr std::size_t kBlockBytes = kMiB;
constexpr int kDepthMax = 1024;

}  // namespace

std::unique_ptr<BlockStore> make_nvme_store(const NvmeStoreOptions& options, Log& log) {
  if (options.directories.empty()) {
    throw ConfigError("the NVMe tier has no directory", "name one on the drive to be used");
  }
  if (options.queue_depth < 1 || options.queue_depth > kDepthMax) {
    throw ConfigError("the queue depth of the NVMe tier is not between 1 and 1024",
                      "leave it out, or choose a value in that range");
  }
  return std::make_unique<StripedStore>(
      StripedStore::Options{.block_bytes = kBlockBytes,
                            .checksums = options.checksums,
                            .stall_seconds = options.stall_seconds,
                            .verify_apart = true},
      std::make_unique<SlotFiles>(options, log), log);
}

}  // namespace terrace
