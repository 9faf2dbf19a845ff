#pragma once

namespace terrace::test {

// Returns whether the NVIDIA driver's library can be loaded. If so, the suites of this folder are
// instantiated, and fail where a GPU cannot be used; without a driver they are not instantiated,
// and one test says so.
bool has_cuda_driver();

}  // namespace terrace::test
