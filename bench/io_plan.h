#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "bench/bench.h"
#include "bench/io_load.h"

// What bench io measures: shapes of requests, and the places of a drive that they go through.
namespace terrace {

inline constexpr int kIoDepthMax = 64;
inline constexpr std::size_t kIoBlockMax = 8 * 1024 * 1024;
inline constexpr std::size_t kIoTools = 2;  // that are measured in the same rounds

// Shapes that a tool is tried with once, the best of which are measured in rounds. Without a grid
// they are all measured in rounds. `wide`: of requests that go through more memory than caches
// hold.
std::vector<IoShape> io_shapes_to_try(const BenchOptions& options, bool wide);
// So many shapes of a tool are measured in rounds, besides the store's.
std::size_t io_finalists(const BenchOptions& options, bool wide);
// Shapes that the store is measured with, of one size: memory that is used again while it is in the
// caches, as fio's is.
std::span<const IoShape> io_store_shapes(const BenchOptions& options);
// More than caches hold, as a step's is.
IoShape io_wide_shape(const BenchOptions& options);

// Regions of a drive's file, and bytes of each, and of a store on each drive.
std::size_t io_regions(const BenchOptions& options);
std::size_t io_region_bytes(const BenchOptions& options);
// What all drives hold together: the regions, the stores without checksums and with, and the wide
// one, which has two requests at the least.
std::uint64_t io_space(const BenchOptions& options);

// How long a shape is tried.
double io_screening_seconds(const BenchOptions& options);

}  // namespace terrace
