#pragma once

namespace terrace::test {

// The NVIDIA driver's library can be loaded. The suites of this folder are then instantiated, and
// fail where a GPU cannot be used; without a driver they are not, and one test says so.
bool has_cuda_driver();

}  // namespace terrace::test
