#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "bench/bench.h"
#include "bench/deadline.h"
#include "bench/io_load.h"

// The plan of bench io: the shapes of requests, and the places of a drive that they go through.
namespace terrace {

inline constexpr int kIoDepthMax = 64;
inline constexpr std::size_t kIoBlockMax = 8 * 1024 * 1024;
inline constexpr std::size_t kIoTools = 2;  // that are measured in the same rounds

// Returns the shapes that a tool is tried with once. The best of them are measured in rounds;
// without a grid all of them are. `wide`: for requests that go through more memory than caches
// hold.
std::vector<IoShape> io_shapes_to_try(const BenchOptions& options, bool wide);
// Returns how many shapes of a tool are measured in rounds, besides the store's.
std::size_t io_finalists(const BenchOptions& options, bool wide);
// Returns the shapes that the store is measured with, which have one size. Their memory is used
// again while it is in the caches, as fio's is.
std::span<const IoShape> io_store_shapes(const BenchOptions& options);
// Returns a shape with more memory than caches hold, as a step has.
IoShape io_wide_shape(const BenchOptions& options);

// Return the number of regions of a drive's file, and the bytes of each region, and of a store on
// each drive.
std::size_t io_regions(const BenchOptions& options);
std::size_t io_region_bytes(const BenchOptions& options);
// Returns the bytes that all drives hold together: the regions, the stores without checksums and
// with, and the wide store, which has at least two requests.
std::uint64_t io_space(const BenchOptions& options);

// Returns the size of the largest blocks that are tried; with the deepest queue they take all of
// the memory that requests go through.
std::size_t io_block_max(const BenchOptions& options);
// Returns the bytes of a store on each drive, a region's or fewer, so that all stores can be
// written in a part of the time until `end`.
std::size_t io_store_bytes(const BenchOptions& options, double bytes_per_s, const Deadline& end);
// Returns how long a measurement of a mix takes: as long as the options say, or shorter, so that
// its first round ends in half of the time until the end.
double io_measurement_seconds(const BenchOptions& options, bool has_fio, const Deadline& end);
// Returns how long a shape is tried.
double io_screening_seconds(const BenchOptions& options);

}  // namespace terrace
