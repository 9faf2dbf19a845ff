#include <fmt/format.h>

#include <algorithm>

#include "runtime/bench/bench_list.h"
#include "runtime/bench/kernel_cases.h"
#include "runtime/bench/usage_clock.h"

namespace terrace {
namespace {

// Work per second, in units of 1e9, besides the rate by the clock on the wall.
struct Rates {
  Samples processor;  // by the time of all processors, as if none had waited
};

// Calls until about `seconds` are over, once at least; the rate by the wall's clock.
double rate_of(const std::function<void()>& call, double work, double seconds, int threads,
               Rates& rates) {
  const UsageClock clock;
  double done = 0;
  do {
    call();
    done += work * 1e-9;
  } while (clock.wall_seconds() < seconds);
  rates.processor.add(done * threads / std::max(1e-9, clock.cpu_seconds()));
  return done / clock.wall_seconds();
}

BenchResult measure(const std::string& name, const KernelCase& kernel,
                    const BenchOptions& options) {
  // Each case has two measurements a round, and there are some dozens: a tenth of the time each.
  const double seconds = options.seconds / 10;
  const double work = kernel.is_product() ? kernel.flops : kernel.bytes;
  kernel.run();  // compiles what is compiled at the first call
  const KernelLimit& quickest = kernel.quickest_limit();
  Rates value, limit;
  const std::vector<Measurement> both = {
      [&] { return rate_of(kernel.run, work, seconds, options.threads, value); },
      [&] { return rate_of(quickest.run, work, seconds, options.threads, limit); }};
  const std::vector<Samples> samples = interleave(both, options.repetitions);
  const double by_processor = value.processor.median();
  const double limit_by_processor = limit.processor.median();
  return {
      .name = name,
      .unit = kernel.is_product() ? BenchUnit::kGigaflopsPerSecond : BenchUnit::kGigabytesPerSecond,
      .value = samples[0],
      .limit = samples[1],
      .limit_is = quickest.is,
      .details = {{"by processor time",
                   fmt::format("{:.1f}, limit {:.1f}, ratio {:.3f}", by_processor,
                               limit_by_processor, by_processor / limit_by_processor)}}};
}

struct KernelScene {
  const char* preset;
  const char* prefix;
  BatchShape batch;
  DType type;
};

std::vector<KernelScene> kernel_scenes(const BenchOptions& options) {
  if (options.small) {
    return {{"nano", "nano_bf16", {2, 32}, DType::kBF16},
            {"nano", "nano_fp32", {2, 32}, DType::kF32}};
  }
  return {{"gpt2-124m", "gpt2_124m_bf16", {4, 512}, DType::kBF16},
          {"gpt2-124m", "gpt2_124m_fp32", {4, 512}, DType::kF32},
          {"llama-1b", "llama_1b_bf16", {4, 512}, DType::kBF16}};
}

}  // namespace

std::vector<BenchResult> bench_kernel(const BenchOptions& options, Log& log) {
  if (options.device != nullptr) return bench_device_kernel(options, log);
  WorkerArena workers(options.threads);
  std::vector<BenchResult> results;
  for (const KernelScene& scene : kernel_scenes(options)) {
    log.info(fmt::format("bench kernel: {} in {}, {} x {} tokens, {} rounds", scene.preset,
                         name_of(scene.type), scene.batch.sequences, scene.batch.positions,
                         options.repetitions));
    const KernelSetting setting = {.model = load_model_config(scene.preset),
                                   .batch = scene.batch,
                                   .type = scene.type,
                                   .workers = &workers};
    for (const auto& makers : {product_cases(setting), element_cases(setting)}) {
      for (const KernelCaseMaker& make : makers) {
        const KernelCase kernel = make();
        results.push_back(
            measure(fmt::format("{}_{}", scene.prefix, kernel.name), kernel, options));
      }
    }
  }
  return results;
}

}  // namespace terrace
