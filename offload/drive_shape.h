#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "offload/block_layout.h"

namespace terrace {

// How a drive is used: the size of a block, and how many are in flight.
struct DriveShape {
  std::size_t block_bytes = kMiB;
  int depth = 32;
  friend bool operator==(const DriveShape&, const DriveShape&) = default;
};

// What a drive was measured to do, in GB = 1e9 bytes per second.
struct DriveFacts {
  DriveShape shape;  // the best for reads
  double read_gb_per_s = 0;
  double write_gb_per_s = 0;
  friend bool operator==(const DriveFacts&, const DriveFacts&) = default;
};

// A shape with its rate.
struct TriedShape {
  DriveShape shape;
  double gb_per_s = 0;
};

// Of those that are as fast as the fastest, but for a twentieth, the one with the most bytes in
// flight, because they keep the drive busy while the processors do something else; of these, the
// one with the largest blocks, because a block costs time on a processor. Of one or more.
TriedShape best_shape(std::span<const TriedShape> tried);

// A stripe's directory, for its share of the blocks.
struct StripeRoom {
  double gb_per_s = 0;           // 0: not known
  std::uint64_t room_bytes = 0;  // so much fits
};

// Shares by speed, so that all stripes end at the same time. Alike where a speed is not known, and
// where a part of `total_bytes` by speed would not fit. Speeds that differ by less than a fifth are
// the same: drives drift by as much.
StripeShares stripe_shares(std::span<const StripeRoom> stripes, std::uint64_t total_bytes);

}  // namespace terrace
