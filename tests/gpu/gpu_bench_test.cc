#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>

#include "bench/bench.h"
#include "bench/bench_device.h"
#include "bench/bench_record.h"
#include "tests/gpu/gpu_presence.h"

// Runs the GPU's benchmarks on a GPU, as small as possible. The times that they measure are not
// checked, because a time proves nothing here.
namespace terrace {
namespace {

class GpuBench : public testing::TestWithParam<std::string_view> {};

TEST_P(GpuBench, Runs) {
  if (!test::has_cuda_driver()) GTEST_SKIP() << "not run: there is no CUDA driver";
  const std::unique_ptr<BenchDevice> device = make_bench_device({DeviceKind::kCuda, 0});
  BenchOptions options;
  options.device = device.get();
  options.repetitions = 2;
  options.seconds = 0.01;
  options.small = true;
  SilentLog log;
  const Bench& bench = *std::ranges::find(benches(), GetParam(), &Bench::name);
  BenchRecord record;
  bench.run(options, record, log);
  const std::vector<BenchResult> results = record.results();
  EXPECT_FALSE(results.empty());
  for (const BenchResult& result : results) {
    EXPECT_GT(result.value.low(), 0) << result.name;
    EXPECT_GT(result.limit.low(), 0) << result.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Benches, GpuBench, testing::Values("copy", "kernel", "step"),
                         [](const auto& name) { return std::string(name.param); });

}  // namespace
}  // namespace terrace
