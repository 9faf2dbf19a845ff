#pragma once

#include "kernels/cpu/packed_strips.h"

// How strips of bf16 are packed for instructions that multiply pairs of neighbouring depths: in
// tile registers (amx_tiles.h) and in vector registers (pair_products.h). They need AVX-512 with
// bytes and words (F, BW and VL).
namespace terrace {

// A step of a left strip is row-major: depth runs fastest. A step of a right strip is two tiles, of
// its columns 0 to 15 and 16 to 31. Row p of a tile has a pair for each column: the elements of the
// depths 2p and 2p + 1, in that order.
void pack_pairs_left(const PackStrip& strip);
void pack_pairs_right(const PackStrip& strip);

}  // namespace terrace
