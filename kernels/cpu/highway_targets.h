#pragma once

// The instruction sets that Highway code is compiled for; included before every Highway header.
// SSSE3 is left out: it has 128 bits as SSE4 has, and almost all processors with SSSE3 have SSE4
// too. Vectors whose size the compiler does not know (SVE, RVV) are left out, because fixed
// summation trees keep arrays of vectors; those processors run the 128-bit code.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
