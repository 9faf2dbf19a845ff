#include "offload/nvme_store.h"

#include <utility>

#include "base/error.h"
#include "offload/nvme_shape.h"
#include "offload/slot_files.h"
#include "offload/striped_store.h"

namespace terrace {
namespace {

constexpr int kDepthMax = 1024;

}  // namespace

std::unique_ptr<BlockStore> make_nvme_store(const NvmeStoreOptions& options, Log& log) {
  if (options.directories.empty()) {
    throw ConfigError("the NVMe tier has no directory", "name one on the drive to use");
  }
  if (options.queue_depth && (*options.queue_depth < 1 || *options.queue_depth > kDepthMax)) {
    throw ConfigError("the queue depth of the NVMe tier is not between 1 and 1024",
                      "leave it out, or choose a value in that range");
  }
  auto files = std::make_unique<SlotFiles>(options, log);
  const NvmeShape shape = nvme_shape(options, *files, log);
  for (std::size_t device = 0; device < shape.depths.size(); ++device) {
    files->open(device, shape.depths[device], shape.in_flight[device]);
  }
  return std::make_unique<StripedStore>(
      StripedStore::Options{.block_bytes = shape.block_bytes,
                            .checksums = options.checksums,
                            .stall_seconds = options.stall_seconds,
                            .checksums_apart = true,
                            .shares = shape.shares},
      std::move(files), log);
}

}  // namespace terrace
