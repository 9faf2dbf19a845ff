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

// The measured performance of a drive, in GB = 1e9 bytes per second.
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

// Picks, among the shapes within 5 % of the fastest, the one with the most bytes in flight, because
// they keep the drive busy while the processors do something else. Among equals, picks the one with
// the largest blocks, because each block costs processor time. `tried` has one or more shapes.
TriedShape best_shape(std::span<const TriedShape> tried);

// The directory of a stripe, described for sharing out the blocks.
struct StripeRoom {
  double gb_per_s = 0;           // 0: not known
  std::uint64_t room_bytes = 0;  // how much fits there
};

// Returns shares in proportion to speed, so that all stripes end at the same time. The shares are
// equal where a speed is not known, and where a stripe's part of `total_bytes` would not fit. A
// stripe that is less than a fifth slower than the fastest counts as equally fast: drives drift by
// as much.
StripeShares stripe_shares(std::span<const StripeRoom> stripes, std::uint64_t total_bytes);

}  // namespace terrace
