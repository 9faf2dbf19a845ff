#include <fmt/format.h>

#include <algorithm>

#include "bench/bench_list.h"
#include "bench/bench_only.h"
#include "bench/kernel_cases.h"
#include "bench/usage_clock.h"

namespace terrace {
namespace {

// Work per second, in units of 1e9, besides the rate by wall-clock time.
struct Rates {
  Samples processor;  // by the time of all processors, as if none had waited
};

// Calls until about `seconds` are over, at least once. Returns the rate by wall-clock time.
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

// The rates of a kernel and of its limit.
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

// Returns the seconds of a measurement: a tenth of the options' time, because each of some dozens
// of cases has two measurements a round.
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

constexpr BatchShape kUsualBatch = {4, 512};
constexpr double kHurriedShare = 0.3;  // of a case's part of the time, for its rounds

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
  BatchShape batch = kUsualBatch;
  if (options.tokens != 0) batch = {1, options.tokens};
  return {{"gpt2-124m", "gpt2_124m_bf16", batch, DType::kBF16},
          {"gpt2-124m", "gpt2_124m_fp32", batch, DType::kF32},
          {"llama-1b", "llama_1b_bf16", batch, DType::kBF16}};
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

std::vector<KernelCaseMaker> wanted_makers(const BenchOptions& options, const KernelScene& scene,
                                           const KernelSetting& setting) {
  std::vector<KernelCaseMaker> makers = makers_of(setting);
  std::erase_if(makers, [&](const KernelCaseMaker& maker) {
    return !is_wanted(options, result_name(scene, maker));
  });
  return makers;
}

// Returns the operations of one call of each product that is wanted. In a small model most of them
// are the head's.
double flops_of_wanted(const BenchOptions& options, const KernelScene& scene,
                       const KernelSetting& setting) {
  const std::int64_t tokens = scene.batch.rows();
  const double head = flops_of_head(setting.model, tokens);
  const double block = flops_of_unit_kernels(setting.model, tokens) - head;
  const auto share_of = [&](bool of_head) {
    double all = 0;
    double wanted = 0;
    for (const KernelCaseMaker& maker : makers_of(setting)) {
      const bool is_head = maker.name == "head_loss";
      const bool is_product = is_head || maker.name.starts_with("matmul_");
      if (!is_product || maker.name.ends_with("_row") || maker.name.ends_with("_rows")) continue;
      if (is_head != of_head) continue;
      all += 1;
      wanted += is_wanted(options, result_name(scene, maker)) ? 1 : 0;
    }
    return all == 0 ? 0 : wanted / all;
  };
  return share_of(true) * head + share_of(false) * block;
}

std::size_t wanted_cases(const BenchOptions& options) {
  std::size_t cases = 0;
  for (const KernelScene& scene : kernel_scenes(options)) {
    cases += wanted_makers(options, scene, setting_of(scene, nullptr)).size();
  }
  return cases;
}

}  // namespace

std::vector<std::string> names_of_kernel(const BenchOptions& options) {
  if (options.device != nullptr) return names_of_device_kernel(options);
  std::vector<std::string> names;
  for (const KernelScene& scene : kernel_scenes(options)) {
    for (const KernelCaseMaker& maker : makers_of(setting_of(scene, nullptr))) {
      names.push_back(result_name(scene, maker));
    }
  }
  return names;
}

BenchCost cost_of_kernel(const BenchOptions& options, const MachineSpeed& speed) {
  // A product has its first call, the tries of ways to do it, and two measurements a round, of at
  // least one call. All products of a step together are its 6 operations for each parameter and
  // token.
  constexpr double kTries = 8;
  BenchCost cost;
  for (const KernelScene& scene : kernel_scenes(options)) {
    const KernelSetting setting = setting_of(scene, nullptr);
    const auto cases = static_cast<double>(wanted_makers(options, scene, setting).size());
    const double rounds = 2.0 * options.repetitions;
    const double calls_s = flops_of_wanted(options, scene, setting) / speed.flops_per_s(scene.type);
    cost.seconds += std::max(rounds * cases * measurement_seconds(options), rounds * calls_s) +
                    kTries * calls_s;
  }
  return cost;
}

// Gives a kernel fewer tokens in a hurry and calls it for a shorter time, so that a round of all
// kernels fits half of the limit.
void fit_kernel(BenchOptions& options, const MachineSpeed& speed) {
  constexpr double kMeasuredShare = 0.25;
  constexpr double kShare = 0.5;
  constexpr std::int64_t kLeastTokens = 32;
  const auto cases = static_cast<double>(wanted_cases(options));
  const double limit_s = *options.time_limit_s;
  options.seconds = std::min(options.seconds, 10 * kMeasuredShare * limit_s / (2 * cases));
  BenchOptions round = options;
  round.repetitions = 1;
  for (std::int64_t tokens = kUsualBatch.rows() / 2;
       cost_of_kernel(round, speed).seconds > kShare * limit_s && tokens >= kLeastTokens;
       tokens /= 2) {
    round.tokens = tokens;
  }
  options.tokens = round.tokens;
}

void bench_kernel(const BenchOptions& options, BenchRecord& record, Log& log) {
  if (options.device != nullptr) return bench_device_kernel(options, record, log);
  record.expect(names_of_kernel(options));
  WorkerArena workers(options.threads);
  std::size_t cases_left = wanted_cases(options);
  for (const KernelScene& scene : kernel_scenes(options)) {
    log.info(fmt::format("bench kernel: {} in {}, {} x {} tokens, {} rounds", scene.preset,
                         name_of(scene.type), scene.batch.sequences, scene.batch.positions,
                         options.repetitions));
    const KernelSetting setting = setting_of(scene, &workers);
    for (const KernelCaseMaker& maker : wanted_makers(options, scene, setting)) {
      record.check_time();
      // Cases come from small to large, and in a hurry making one takes longer than a round.
      const double share = options.hurried ? kHurriedShare : 1;
      const Rounds rounds =
          record.rounds(options.repetitions, share / static_cast<double>(cases_left--));
      measure(result_name(scene, maker), maker.make(), options, rounds, record);
    }
  }
}

}  // namespace terrace
