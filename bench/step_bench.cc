#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/clock.h"
#include "bench/bench_engine.h"
#include "bench/bench_list.h"
#include "bench/bench_only.h"
#include "bench/case_memory.h"
#include "bench/kernel_cases.h"
#include "bench/step_runner.h"
#include "bench/timed_kernels.h"
#include "optim/rules/rules.h"
#include "runtime/engine/model_runtime.h"
#include "runtime/model/model_shape.h"
#include "runtime/step/simulate.h"

namespace terrace {
namespace {

constexpr int kSteps = 4;            // of a measurement
constexpr double kQuickShare = 0.2;  // of the time, for what is measured first in a hurry

struct StepScene {
  const char* preset;
  const char* name;
  BatchShape batch;
  DType type;
  // Changes to the preset, where the whole model needs more memory and patience than there is.
  ModelShape shape = {};

  bool is_small() const { return std::string_view(preset) == "nano"; }
};

ModelConfig model_of(const StepScene& scene) {
  return with_shape(load_model_config(scene.preset), scene.shape);
}

double seconds_of(const std::function<void()>& call) {
  const SystemClock clock;
  const std::int64_t begin_ns = clock.now_ns();
  call();
  return static_cast<double>(clock.now_ns() - begin_ns) * 1e-9;
}

ModelRuntimeOptions engine_options(const StepScene& scene, const BenchOptions& options) {
  ModelRuntimeOptions engine = bench_engine(model_of(scene), scene.batch, scene.type, options);
  engine.backend = &timed_backend();
  return engine;
}

// The step's kernels, each alone.
class KernelsAlone {
 public:
  KernelsAlone(const StepScene& scene, WorkerArena& workers)
      : setting_{model_of(scene), scene.batch, scene.type, &workers} {
    for (const KernelCaseMaker& maker : product_cases(setting_)) {
      (maker.name.starts_with("matmul_") ? matmuls_ : products_).add(maker.make());
    }
    for (const KernelCaseMaker& maker : element_cases(setting_)) elements_.add(maker.make());
  }

  double matmuls_seconds() const { return matmuls_.seconds(); }
  double matmuls_limit_seconds() const { return matmuls_.limit_seconds(); }
  double products_seconds() const { return products_.seconds(); }
  double products_limit_seconds() const { return products_.limit_seconds(); }
  double elements_seconds() const { return elements_.seconds(); }
  double elements_limit_seconds() const { return elements_.warm_limit_seconds(); }

 private:
  // Kernels, each with its quickest limit.
  class Cases {
   public:
    void add(KernelCase kernel) {
      kernel.run();
      kernel.limits = {kernel.quickest_limit()};
      cases_.push_back(std::move(kernel));
    }
    double seconds() const {
      return sum([](const KernelCase& kernel) { return seconds_of(kernel.run); });
    }
    double limit_seconds() const {
      return sum([](const KernelCase& kernel) { return seconds_of(kernel.limits.front().run); });
    }
    // Returns the seconds of the limits on bytes that have just been moved: in a step the kernel
    // before has just written the bytes that a kernel reads.
    double warm_limit_seconds() const {
      return sum([](const KernelCase& kernel) {
        kernel.limits.front().run();
        return seconds_of(kernel.limits.front().run);
      });
    }

   private:
    double sum(double (*seconds_of_call)(const KernelCase& kernel)) const {
      double seconds = 0;
      for (const KernelCase& kernel : cases_) seconds += kernel.per_step * seconds_of_call(kernel);
      return seconds;
    }

    std::vector<KernelCase> cases_;
  };

  KernelSetting setting_;
  Cases matmuls_;   // products of the blocks' weights
  Cases products_;  // attention and the head
  Cases elements_;
};

// An optimizer update alone, as the update lane makes it.
class UpdateAlone {
 public:
  UpdateAlone(std::int64_t elements, int threads)
      : workers_(threads), memory_(workers_), context_(memory_.context(0)) {
    const UpdateRule& rule = update_rule<rules::AdamW>();
    update_.options = standard_options(rule);
    scalars_.learning_rate = 1e-5F;
    scalars_.of_rule = rule.step_scalars(update_.options, 10, 3e-4);
    update_.gradient = memory_.tensor(DType::kF32, elements);
    update_.master = memory_.tensor(DType::kF32, elements);
    update_.slots[0] = memory_.tensor(DType::kF32, elements);
    update_.slots[1] = memory_.tensor(DType::kF32, elements);
    update_.parameter = memory_.tensor(DType::kBF16, elements);
    update_.scalars = &scalars_;
    for (std::int64_t i = 0; i < elements; ++i) update_.slots[1].as<float>()[i] = 1e-4F;
  }

  double bytes_per_second() const {
    constexpr double kBytes = 4 + 2 * 12 + 2;  // gradient; state in and out; parameter
    const double seconds =
        seconds_of([this] { update_rule<rules::AdamW>().cpu(context_, update_); });
    return kBytes * static_cast<double>(update_.gradient.elements()) / seconds;
  }

 private:
  WorkerArena workers_;
  HostCaseMemory memory_;
  KernelContext context_;
  ParameterUpdate update_;
  StepScalars scalars_;
};

double flops_of(const Program& program) {
  double flops = 0;
  for (const Op& op : program.ops) flops += op.cost.flops;
  return flops;
}

// Returns what the simulator is told of this machine. It is measured on kernels alone, never on
// whole steps. A step that is all in memory has no other lanes.
MachineProfile profile_of(const Program& program, double compute_s, double update_bytes_per_s,
                          const BenchOptions& options, int update_threads) {
  MachineProfile profile;
  profile.flops_per_s = flops_of(program) / compute_s;
  profile.update_bytes_per_s = update_bytes_per_s;
  profile.memory_bytes_per_s = 2 * update_bytes_per_s;
  profile.cores = options.threads;
  profile.compute_cores = options.threads;
  profile.update_cores = update_threads;
  return profile;
}

enum StepPlace : std::size_t {
  kStep,
  kMatmuls,
  kMatmulsLimit,
  kProducts,
  kProductsLimit,
  kElements,
  kElementsLimit,
  kUpdate
};

Samples added(const Samples& a, const Samples& b) {
  Samples sums;
  for (std::size_t i = 0; i < a.values().size(); ++i) sums.add(a.values()[i] + b.values()[i]);
  return sums;
}

Samples predictions(const StepRunner& runner, const std::vector<Samples>& samples,
                    const BenchOptions& options) {
  Samples out;
  for (std::size_t i = 0; i < samples[kStep].values().size(); ++i) {
    const double compute_s = samples[kMatmuls].values()[i] + samples[kProducts].values()[i] +
                             samples[kElements].values()[i];
    const MachineProfile profile =
        profile_of(runner.program(), compute_s, samples[kUpdate].values()[i], options,
                   runner.update_threads());
    out.add(simulate(runner.program(), profile, 4).step_s);
  }
  return out;
}

// Steps whose kernels are timed where they run.
class TimedSteps {
 public:
  explicit TimedSteps(StepRunner& runner) : runner_(runner) {}

  // Returns the seconds of a step.
  double step_seconds() {
    std::array<double, kKernelParts> before{};
    for (std::size_t i = 0; i < kKernelParts; ++i) before[i] = kernel_seconds(KernelPart(i));
    const double step_s = runner_.step_seconds(kSteps);
    for (std::size_t i = 0; i < kKernelParts; ++i) {
      in_step_[i].add((kernel_seconds(KernelPart(i)) - before[i]) / kSteps);
    }
    return step_s;
  }

  // The seconds of a part's kernels in a step, once for each step_seconds().
  const Samples& in_step(KernelPart part) const { return in_step_[static_cast<std::size_t>(part)]; }
  void forget() {
    runner_.forget();
    in_step_ = {};
  }

 private:
  StepRunner& runner_;
  std::array<Samples, kKernelParts> in_step_;
};

std::vector<std::string> names_of(const StepScene& scene) {
  std::vector<std::string> names;
  for (const char* const what : {"tokens", "matmul_in_step", "elements", "predicted"}) {
    names.push_back(fmt::format("{}_{}", scene.name, what));
  }
  return names;
}

// Returns each part over the whole of the same sample.
Samples shares(const Samples& parts, const Samples& wholes) {
  return ratios_of_rounds(parts, wholes);
}

void put_speed(const StepScene& scene, const StepRunner& runner,
               const std::vector<Samples>& samples, const BenchOptions& options,
               BenchRecord& record) {
  const auto tokens = static_cast<double>(scene.batch.rows());
  const auto per_second = [tokens](double seconds) { return tokens / seconds; };
  BenchResult result = {
      .name = fmt::format("{}_tokens", scene.name),
      .unit = BenchUnit::kTokensPerSecond,
      .value = samples[kStep].mapped(per_second),
      .limit = added(samples[kMatmulsLimit], samples[kProductsLimit]).mapped(per_second),
      .limit_is = "a step of its matrix products only, by oneDNN alone",
      .details = {
          {"by_processor_time", "tokens/s", runner.processor_seconds().mapped([&](double seconds) {
             return tokens * options.threads / seconds;
           })},
          {"step", "s", samples[kStep]},
          {"products_alone", "s", added(samples[kMatmuls], samples[kProducts])}}};
  add_busy(result.details, "busy", runner.busy_s(), samples[kStep].values().back());
  record.put(std::move(result));
}

void put_kernels(const StepScene& scene, const TimedSteps& steps,
                 const std::vector<Samples>& samples, BenchRecord& record) {
  const Samples& elements = steps.in_step(KernelPart::kElement);
  const Samples others = added(elements, steps.in_step(KernelPart::kOther));
  record.put({.name = fmt::format("{}_matmul_in_step", scene.name),
              .unit = BenchUnit::kSeconds,
              .value = steps.in_step(KernelPart::kMatmul),
              .limit = samples[kMatmulsLimit],
              .limit_is = "the products with weights by oneDNN alone",
              .details = {{"alone", "s", samples[kMatmuls]}}});
  record.put({.name = fmt::format("{}_elements", scene.name),
              .unit = BenchUnit::kSeconds,
              .value = elements,
              .limit = samples[kElementsLimit],
              .limit_is = "loops that only stream the same bytes, or copies of the same size",
              .details = {{"alone", "s", samples[kElements]},
                          {"share_of_step", "of a step", shares(elements, samples[kStep])},
                          {"share_with_embedding_sums_and_norms", "of a step",
                           shares(others, samples[kStep])}}});
}

void measure(const StepScene& scene, const BenchOptions& options, double share, BenchRecord& record,
             Log& log) {
  log.info(fmt::format("bench step: {} in {}, {} x {} tokens, {} rounds", scene.preset,
                       name_of(scene.type), scene.batch.sequences, scene.batch.positions,
                       options.repetitions));
  StepRunner runner(engine_options(scene, options), log);
  TimedSteps steps(runner);
  // The first step of a measurement is not timed: where time is short that is warm-up enough.
  if (!options.hurried) steps.step_seconds();
  steps.forget();
  WorkerArena workers(options.threads);
  const KernelsAlone kernels(scene, workers);
  const UpdateAlone update(scene.is_small() ? 1 << 12 : 1 << 24, runner.update_threads());
  const std::vector<Measurement> measurements = {[&] { return steps.step_seconds(); },
                                                 [&] { return kernels.matmuls_seconds(); },
                                                 [&] { return kernels.matmuls_limit_seconds(); },
                                                 [&] { return kernels.products_seconds(); },
                                                 [&] { return kernels.products_limit_seconds(); },
                                                 [&] { return kernels.elements_seconds(); },
                                                 [&] { return kernels.elements_limit_seconds(); },
                                                 [&] { return update.bytes_per_second(); }};
  interleave(measurements, record.rounds(options.repetitions, share),
             [&](const std::vector<Samples>& samples) {
               put_speed(scene, runner, samples, options, record);
               put_kernels(scene, steps, samples, record);
               record.put({.name = fmt::format("{}_predicted", scene.name),
                           .unit = BenchUnit::kSeconds,
                           .value = samples[kStep],
                           .limit = predictions(runner, samples, options),
                           .limit_is = "the step that the simulator predicts from a profile of "
                                       "kernels alone"});
             });
}

std::vector<StepScene> step_scenes(const BenchOptions& options) {
  const StepScene nano = {"nano", "nano_bf16", {2, 32}, DType::kBF16};
  if (options.small) return {nano, {"nano", "nano_fp32", {2, 32}, DType::kF32}};
  return {{"gpt2-124m", "gpt2_124m_bf16", {4, 512}, DType::kBF16},
          {"gpt2-124m", "gpt2_124m_fp32", {4, 512}, DType::kF32},
          {"llama-1b",
           "llama_1b_2_layers_bf16",
           {4, 512},
           DType::kBF16,
           {.layers = 2, .vocabulary = 8192}}};
}

// Returns the scenes of which a result is wanted.
std::vector<StepScene> wanted_scenes(const BenchOptions& options) {
  std::vector<StepScene> scenes = step_scenes(options);
  std::erase_if(scenes,
                [&](const StepScene& scene) { return !any_is_wanted(options, names_of(scene)); });
  return scenes;
}

// Measures scenes and predictions, in this share of the time that is left. The predictions count as
// two parts.
void measure_all(const BenchOptions& options, double share, BenchRecord& record, Log& log) {
  const std::vector<StepScene> scenes = wanted_scenes(options);
  auto parts_left = static_cast<double>(scenes.size()) + 2;
  for (const StepScene& scene : scenes) {
    record.check_time();
    measure(scene, options, share / parts_left--, record, log);
  }
  run_step_predictions(options, share, record, log);
}

}  // namespace

std::vector<std::string> names_of_step(const BenchOptions& options) {
  if (options.device != nullptr) return names_of_device_step(options);
  if (options.zero_stage || options.local_ranks > 1) return names_of_ranked_step(options);
  std::vector<std::string> names;
  for (const StepScene& scene : step_scenes(options)) {
    for (std::string& name : names_of(scene)) names.push_back(std::move(name));
  }
  for (std::string& name : step_prediction_names(options)) names.push_back(std::move(name));
  return names;
}

BenchCost cost_of_step(const BenchOptions& options, const MachineSpeed& speed) {
  if (options.zero_stage || options.local_ranks > 1) return cost_of_ranked_step(options, speed);
  BenchCost cost = cost_of_step_predictions(options, speed);
  for (const StepScene& scene : wanted_scenes(options)) {
    // Besides the steps a round has each kernel once, twice or three times, and the head is long.
    const double step_s =
        flops_of_model_step(model_of(scene), scene.batch.rows()) / speed.flops_per_s(scene.type);
    cost.seconds += (kSteps + 1) * step_s * (options.repetitions + 1) + 4 * step_s;
  }
  return cost;
}

void bench_step(const BenchOptions& options, BenchRecord& record, Log& log) {
  if (options.device != nullptr) return bench_device_step(options, record, log);
  if (options.zero_stage || options.local_ranks > 1) {
    return bench_ranked_step(options, record, log);
  }
  const std::optional<BenchOptions> quick = quick_options(options);
  if (quick) record.expect(names_of_step(*quick));
  record.expect(names_of_step(options));
  check_step_predictions(options, log);
  if (quick) measure_all(*quick, kQuickShare, record, log);
  measure_all(options, 1, record, log);
}

}  // namespace terrace
