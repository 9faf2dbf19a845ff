#include <fmt/format.h>

#include <algorithm>

#include "bench/bench_list.h"
#include "bench/kernel_cases.h"
#include "bench/usage_clock.h"

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

// Of a kernel and of what limits it.
struct RatesBesideLimit {
  Rates value, limit;
};

BenchResult result_of(const std::string& name, const KernelCase& kernel,
                      const KernelLimit& limit_of, const std::vector<Samples>& samples,
                      const RatesBesideLimit& rates) {
  const auto& [value, limit] = rates;
  const BenchUnit unit =
      kernel.is_product() ? BenchUnit::kGigaflopsPerSecond : BenchUnit::kGigabytesPerSecond;
  const std::string unit_name(name_of(unit));
  return {.name = name,
          .unit = unit,
          .value = samples[0],
          .limit = samples[1],
          .limit_is = limit_of.is,
          .details = {{"by_processor_time", unit_name, value.processor},
                      {"limit_by_processor_time", unit_name, limit.processor},
                      number_detail("ratio_by_processor_time", "",
                                    value.processor.median() / limit.processor.median())}};
}

// Each case has two measurements a round, and there are some dozens: a tenth of the time each.
double measurement_seconds(const BenchOptions& options) { return options.seconds / 10; }

void measure(const std::string& name, const KernelCase& kernel, const BenchOptions& options,
             const Rounds& rounds, BenchRecord& record) {
  const double seconds = measurement_seconds(options);
  const double work = kernel.is_product() ? kernel.flops : kernel.bytes;
  kernel.run();  // compiles what is compiled at the first call
  const KernelLimit& quickest = kernel.quickest_limit();
  RatesBesideLimit rates;
  const std::vector<Measurement> both = {
      [&] { return rate_of(kernel.run, work, seconds, options.threads, rates.value); },
      [&] { return rate_of(quickest.run, work, seconds, options.threads, rates.limit); }};
  interleave(both, rounds, [&](const std::vector<Samples>& samples) {
    record.put(result_of(name, kernel, quickest, samples, rates));
  });
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

KernelSetting setting_of(const KernelScene& scene, WorkerArena* workers) {
  return {.model = load_model_config(scene.preset),
          .batch = scene.batch,
          .type = scene.type,
          .workers = workers};
}

std::vector<KernelCaseMaker> makers_of(const KernelSetting& setting) {
  std::vector<KernelCaseMaker> makers = product_cases(setting);
  for (KernelCaseMaker& maker : element_cases(setting)) makers.push_back(std::move(maker));
  return makers;
}

std::string result_name(const KernelScene& scene, const KernelCaseMaker& maker) {
  return fmt::format("{}_{}", scene.prefix, maker.name);
}

}  // namespace

BenchCost cost_of_kernel(const BenchOptions& options, const MachineSpeed& speed) {
  // Of a product: its first call, ways to do it that are tried, and two measurements a round of one
  // call at least. All products of a step are its 6 operations for a parameter and token.
  constexpr double kTries = 8;
  BenchCost cost;
  for (const KernelScene& scene : kernel_scenes(options)) {
    const KernelSetting setting = setting_of(scene, nullptr);
    const auto cases = static_cast<double>(makers_of(setting).size());
    const double rounds = 2.0 * options.repetitions;
    const double calls_s =
        flops_of_unit_kernels(setting.model, scene.batch.rows()) / speed.flops_per_s(scene.type);
    cost.seconds += std::max(rounds * cases * measurement_seconds(options), rounds * calls_s) +
                    kTries * calls_s;
  }
  return cost;
}

void bench_kernel(const BenchOptions& options, BenchRecord& record, Log& log) {
  if (options.device != nullptr) return bench_device_kernel(options, record, log);
  WorkerArena workers(options.threads);
  std::size_t cases_left = 0;
  for (const KernelScene& scene : kernel_scenes(options)) {
    const KernelSetting setting = setting_of(scene, &workers);
    for (const KernelCaseMaker& maker : makers_of(setting)) {
      record.expect({result_name(scene, maker)});
      ++cases_left;
    }
  }
  for (const KernelScene& scene : kernel_scenes(options)) {
    log.info(fmt::format("bench kernel: {} in {}, {} x {} tokens, {} rounds", scene.preset,
                         name_of(scene.type), scene.batch.sequences, scene.batch.positions,
                         options.repetitions));
    const KernelSetting setting = setting_of(scene, &workers);
    for (const KernelCaseMaker& maker : makers_of(setting)) {
      record.check_time();
      const Rounds rounds =
          record.rounds(options.repetitions, 1 / static_cast<double>(cases_left--));
      measure(result_name(scene, maker), maker.make(), options, rounds, record);
    }
  }
}

}  // namespace terrace
