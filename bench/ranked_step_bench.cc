#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/failure_text.h"
#include "bench/bench_list.h"
#include "bench/step_runner.h"
#include "memory/host/host_limits.h"
#include "memory/host/thread_plan.h"
#include "memory/state_class.h"
#include "parallel/thread_communicator.h"

// Measures steps of data-parallel ranks as threads: how much of a step the ranks wait for each
// other, what they send, and what they keep.
namespace terrace {
namespace {

constexpr int kRankedSteps = 4;  // of a measurement

// The samples of one rank.
struct RankedSamples {
  Samples step_s;
  Samples compute_s;   // seconds in which its compute lane was busy
  Samples sent_bytes;  // in a step, gradients and parameters
  double parameters = 0;
  double home_bytes = 0;  // of parameters, gradients and optimizer state
};

double home_bytes(const Program& program) {
  double bytes = 0;
  for (const Buffer& buffer : program.buffers) {
    const bool is_state = std::ranges::any_of(kStateClasses, [&](const StateClassInfo& info) {
      return info.account == buffer.account && info.use != StateUse::kMicroBatch;
    });
    if (is_state && buffer.life != Life::kTransient)
      bytes += static_cast<double>(buffer.size_bytes);
  }
  return bytes;
}

class RankedSteps {
 public:
  // Publishes the first rank's samples after each round.
  RankedSteps(const ModelRuntimeOptions& engine, Rounds rounds,
              std::function<void(const RankedSamples&)> publish, Log& log)
      : engine_(engine), rounds_(std::move(rounds)), publish_(std::move(publish)), log_(log) {}

  // Throws the error that failed a rank, and TimeIsUp.
  void run(int ranks) {
    auto worlds = make_thread_communicators(ranks, "world");
    {
      std::vector<std::jthread> threads;
      for (const auto& world : worlds) {
        threads.emplace_back([this, &world] { run_rank(*world); });
      }
    }
    if (error_ != nullptr) std::rethrow_exception(error_);
  }

 private:
  void run_rank(Communicator& world) {
    try {
      measure(world);
    } catch (const std::exception& error) {
      {
        const std::lock_guard lock(mutex_);
        if (error_ == nullptr) error_ = std::current_exception();
      }
      world.abort(failure_text(error));
    }
  }

  void measure(Communicator& world) {
    const StepCommunicators communicators(world, {.data = world.size()});
    ModelRuntimeOptions own = engine_;
    own.ranks = communicators.ranks();
    StepRunner runner(own, log_);
    runner.step_seconds(kRankedSteps);
    runner.forget();
    RankedSamples samples = facts_of(runner);
    const std::vector<Measurement> steps = {[&] {
      const std::uint64_t before = own.ranks.data.host->bytes_sent();
      const double step_s = runner.step_seconds(kRankedSteps);
      const std::uint64_t sent = own.ranks.data.host->bytes_sent() - before;
      samples.sent_bytes.add(static_cast<double>(sent) / kRankedSteps);
      return step_s;
    }};
    Rounds rounds = rounds_;
    rounds.agreed = [&world](bool wants_end) { return any_wants_end(world, wants_end); };
    interleave(steps, rounds, [&](const std::vector<Samples>& taken) {
      if (world.rank() != 0) return;
      samples.step_s = taken[0];
      samples.compute_s = runner.compute_seconds();
      publish_(samples);
    });
  }

  static RankedSamples facts_of(const StepRunner& runner) {
    RankedSamples samples;
    for (const ParameterGroup& group : runner.model().groups) {
      samples.parameters += static_cast<double>(group.padded_elements);
    }
    samples.home_bytes = home_bytes(runner.program());
    return samples;
  }

  const ModelRuntimeOptions engine_;
  const Rounds rounds_;
  const std::function<void(const RankedSamples&)> publish_;  // called by the first rank
  Log& log_;
  std::mutex mutex_;
  std::exception_ptr error_;  // of the rank that failed first; guarded by mutex_
};

// Returns the bytes per parameter of bf16 parameters, fp32 gradients and split masters (10 of
// state).
double formula_of_states(int stage, double ranks) {
  return 2 / (stage >= 3 ? ranks : 1) + 4 / (stage >= 2 ? ranks : 1) +
         10 / (stage >= 1 ? ranks : 1);
}

// Returns the bytes per parameter that a rank sends. Parameters are gathered once, since there is
// room for them to stay from forward to backward.
double formula_of_sent(int stage, double ranks) {
  return (stage == 0 ? 8 : 4 + 2) * (ranks - 1) / ranks;
}

std::string name_of(int stage, int ranks) {
  return fmt::format("zero_{}_of_{}_ranks", stage, ranks);
}

void put_results(const RankedSamples& samples, int stage, int ranks, double tokens,
                 BenchRecord& record) {
  const auto per_second = [tokens](double seconds) { return tokens / seconds; };
  const auto constant = [&samples](double value) {
    return samples.step_s.mapped([value](double) { return value; });
  };
  const std::string name = name_of(stage, ranks);
  record.put({.name = name + "_tokens",
              .unit = BenchUnit::kTokensPerSecond,
              .value = samples.step_s.mapped(per_second),
              .limit = samples.compute_s.mapped(per_second),
              .limit_is = "steps that take only the busy time of the first rank's compute lane"});
  record.put({.name = name + "_states",
              .unit = BenchUnit::kBytesPerElement,
              .value = constant(samples.home_bytes / samples.parameters),
              .limit = constant(formula_of_states(stage, ranks)),
              .limit_is =
                  "2 bytes of parameter, 4 of gradient and 10 of state, divided according to the "
                  "stage"});
  if (ranks == 1) return;
  record.put(
      {.name = name + "_sent",
       .unit = BenchUnit::kBytesPerElement,
       .value = samples.sent_bytes.mapped([&](double bytes) { return bytes / samples.parameters; }),
       .limit = constant(formula_of_sent(stage, ranks)),
       .limit_is = "8 (stage 0) or 4 + 2 bytes per parameter, times (N-1)/N"});
}

// The ranks, their ZeRO stage, and the model and batch that they train.
struct RankedScene {
  int ranks;
  int stage;
  const char* preset;
  BatchShape batch;
};

RankedScene scene_of(const BenchOptions& options) {
  const int ranks = options.local_ranks;
  return {.ranks = ranks,
          .stage = options.zero_stage.value_or(ranks > 1 ? 1 : 0),
          .preset = options.small ? "nano" : "gpt2-124m",
          .batch = options.small ? BatchShape{1, 32} : BatchShape{1, 512}};
}

ModelRuntimeOptions engine_of(const RankedScene& scene, const BenchOptions& options) {
  ModelRuntimeOptions engine;
  engine.model = load_model_config(scene.preset);
  engine.batch = scene.batch;
  engine.placement.unified = true;
  engine.placement.recompute = false;
  engine.zero_stage = scene.stage;
  engine.threads = std::max(1, options.threads / scene.ranks);
  engine.update_threads =
      plan_threads(engine.threads, read_host_limits(), read_topology(), {scene.ranks, 0}).update;
  engine.evaluates = false;
  return engine;
}

}  // namespace

BenchCost cost_of_ranked_step(const BenchOptions& options, const MachineSpeed& speed) {
  const RankedScene scene = scene_of(options);
  const ModelConfig model = load_model_config(scene.preset);
  const double step_s = scene.ranks * flops_of_model_step(model, scene.batch.rows()) /
                        speed.flops_per_s(DType::kBF16);
  return {.seconds = (options.repetitions + 1) * kRankedSteps * step_s};
}

std::vector<std::string> names_of_ranked_step(const BenchOptions& options) {
  const RankedScene scene = scene_of(options);
  const std::string name = name_of(scene.stage, scene.ranks);
  std::vector<std::string> names = {name + "_tokens", name + "_states"};
  if (scene.ranks > 1) names.push_back(name + "_sent");
  return names;
}

void bench_ranked_step(const BenchOptions& options, BenchRecord& record, Log& log) {
  record.expect(names_of_ranked_step(options));
  const RankedScene scene = scene_of(options);
  const ModelRuntimeOptions engine = engine_of(scene, options);
  log.info(fmt::format("bench step: {} on {} ranks as threads, ZeRO stage {}, {} x {} tokens each",
                       scene.preset, scene.ranks, scene.stage, engine.batch.sequences,
                       engine.batch.positions));
  const double tokens = static_cast<double>(engine.batch.rows()) * scene.ranks;
  const auto publish = [&](const RankedSamples& samples) {
    put_results(samples, scene.stage, scene.ranks, tokens, record);
  };
  RankedSteps(engine, record.rounds(options.repetitions), publish, log).run(scene.ranks);
}

}  // namespace terrace
