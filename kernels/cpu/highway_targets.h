#pragma once

// Included before every Highway header: which instruction sets Highway code is compiled for.
// SSSE3 has 128 bits as SSE4 has, which all but the first few processors with SSSE3 know too.
// Vectors whose size the compiler does not know (SVE, RVV) are left out, because fixed summation
// trees keep arrays of vectors; those processors run the 128-bit code.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
