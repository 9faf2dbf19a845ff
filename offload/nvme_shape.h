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
  // The limit on what an engine has in flight: as many bytes as the drive does best with, in more
  // pieces where pieces are smaller than a block. If a depth was asked for, it limits the pieces
  // instead.
  std::vector<InFlight> in_flight;  // by device of the files
};

// Returns the shape that the drives do best with, if the store is large enough to be worth it: from
// their records, or measured now in the (empty) files of `files`, which are empty again afterwards.
// Where that is not possible, returns the usual shape and gives the reason in `log`.
NvmeShape nvme_shape(const NvmeStoreOptions& options, SlotFiles& files, Log& log);

}  // namespace terrace
