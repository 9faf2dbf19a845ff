#pragma once

#include <vector>

#include "base/log.h"
#include "offload/block_layout.h"
#include "offload/nvme_store.h"
#include "offload/slot_files.h"

namespace terrace {

// How a store uses its drives.
struct NvmeShape {
  std::size_t block_bytes = kMiB;
  std::vector<int> depths;  // whole blocks in flight, by device of the files
  StripeShares shares;      // by stripe
  // What an engine may have in flight: as many bytes as the drive does best with, in more pieces
  // where they are smaller than a block; pieces as the depth says where that was asked for.
  std::vector<InFlight> in_flight;  // by device of the files
};

// What the drives do best, where the store is large enough to be worth it: from their records, or
// measured now, in the (empty) files of `files`, which are empty again afterwards. The usual shape
// where that is not possible, with the reason in `log`.
NvmeShape nvme_shape(const NvmeStoreOptions& options, SlotFiles& files, Log& log);

}  // namespace terrace
