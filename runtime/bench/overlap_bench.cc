// Steps of gpt2-124m whose states are on NVMe beside the same steps in memory, from few tokens,
// where the drive is the slower, to many, where compute is.

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "runtime/bench/bench_engine.h"
#include "runtime/bench/bench_list.h"
#include "runtime/bench/drive_check.h"
#include "runtime/bench/idle_bodies.h"
#include "runtime/bench/norm_wait.h"
#include "runtime/bench/step_runner.h"

namespace terrace {
namespace {

constexpr int kOverlapSteps = 4;  // of a measurement

double seconds_of(const OpTime& time) {
  return static_cast<double>(time.end_ns - time.start_ns) * 1e-9;
}

double seconds_of_ops(const StepRunner& runner, std::initializer_list<OpKind> kinds) {
  double seconds = 0;
  for (std::size_t i = 0; i < runner.program().ops.size(); ++i) {
    if (std::ranges::count(kinds, runner.program().ops[i].kind) == 0) continue;
    seconds += seconds_of(runner.op_times()[i]);
  }
  return seconds;
}

// One batch size.
class OverlapLoad {
 public:
  OverlapLoad(const BatchShape& batch, const BenchOptions& options, Log& log)
      : memory_(engine(batch, options), log),
        unclipped_(on_nvme(batch, options, 0, nullptr), log),
        clipped_(on_nvme(batch, options, 1, nullptr), log),
        unclipped_bodies_(&unclipped_.bodies()),
        clipped_bodies_(&clipped_.bodies()),
        unclipped_idle_(on_nvme(batch, options, 0, &unclipped_bodies_), log),
        clipped_idle_(on_nvme(batch, options, 1, &clipped_bodies_), log) {}

  // Of the drives, for all its engines.
  static std::uint64_t space(const BatchShape& batch, const BenchOptions& options) {
    return 2 * (nvme_bytes(on_nvme(batch, options, 0, nullptr)) +
                nvme_bytes(on_nvme(batch, options, 1, nullptr)));
  }

  double memory_s() {
    const double step_s = memory_.step_seconds(kOverlapSteps);
    forward_s_ = seconds_of_ops(memory_, {OpKind::kForward});
    backward_s_ = seconds_of_ops(memory_, {OpKind::kRecompute, OpKind::kHead, OpKind::kBackward,
                                           OpKind::kEmbeddingBackward});
    return step_s;
  }
  double compute_s() const { return forward_s_ + backward_s_; }

  double unclipped_s() {
    const double step_s = unclipped_.step_seconds(kOverlapSteps);
    busiest_.add(*std::ranges::max_element(unclipped_.busy_s()) / step_s);
    busy_lanes_ = busy_text(unclipped_.busy_s(), step_s);
    return step_s;
  }
  double clipped_s() { return clipped_.step_seconds(kOverlapSteps); }
  double drive_s() { return unclipped_idle_.step_seconds(kOverlapSteps); }

  // What a clipped step cannot do without; of the last memory_s().
  double clipped_bound_s() {
    const double drive_s = clipped_idle_.step_seconds(kOverlapSteps);
    const double behind_norm_s = drive_s * part_behind_norm();
    return std::max(drive_s, backward_s_ + std::max(forward_s_, behind_norm_s));
  }
  // Of all that a clipped step reads and writes.
  double part_behind_norm() const {
    const Program& program = clipped_idle_.program();
    return bytes_behind_norm(program) /
           (lane_bytes(program, Lane::kRead) + lane_bytes(program, Lane::kWrite));
  }

  // Which part of an unclipped step its busiest lane was busy, once for each unclipped_s().
  const Samples& busiest() const { return busiest_; }
  const std::string& busy_lanes() const { return busy_lanes_; }  // of the last
  // Of all processors, for a step.
  std::string processor_time() const {
    return fmt::format("{:.2f} s, of the step in memory {:.2f} s",
                       unclipped_.processor_seconds().median(),
                       memory_.processor_seconds().median());
  }
  void forget() {
    busiest_ = {};
    memory_.forget();
    unclipped_.forget();
  }

 private:
  static EngineOptions engine(const BatchShape& batch, const BenchOptions& options) {
    EngineOptions engine = bench_engine(load_model_config(options.small ? "nano" : "gpt2-124m"),
                                        batch, DType::kBF16, options);
    engine.optimizer.max_grad_norm = 0;
    return engine;
  }
  static EngineOptions on_nvme(const BatchShape& batch, const BenchOptions& options,
                               double max_grad_norm, OpBodies* bodies) {
    EngineOptions on_drive = engine(batch, options);
    place_states_on_nvme(on_drive);
    on_drive.optimizer.max_grad_norm = max_grad_norm;
    on_drive.bodies = bodies;
    return on_drive;
  }

  StepRunner memory_, unclipped_, clipped_;
  IdleBodies unclipped_bodies_, clipped_bodies_;
  StepRunner unclipped_idle_, clipped_idle_;
  double forward_s_ = 0, backward_s_ = 0;  // of the last memory_s()
  Samples busiest_;
  std::string busy_lanes_;
};

BenchResult::Detail of_rounds(const Samples& values, const Samples& limits) {
  return {"step / limit, median of the rounds",
          fmt::format("{:.3f}", ratios_of_rounds(values, limits).median())};
}

enum OverlapPlace : std::size_t { kMemory, kUnclipped, kClipped, kDrive };

std::vector<BenchResult> measure(const BatchShape& batch, const BenchOptions& options, Log& log) {
  const std::string name =
      fmt::format("{}_bf16_{}_tokens", options.small ? "nano" : "gpt2_124m", batch.rows());
  log.info(fmt::format("bench overlap: {}, {} rounds", name, options.repetitions));
  const auto owned = std::make_unique<OverlapLoad>(batch, options, log);  // large for a stack
  OverlapLoad& load = *owned;
  load.memory_s();
  load.unclipped_s();
  load.forget();
  // A bound is made of the times of a step in memory: they are taken together.
  Samples compute_s, bound_s;
  const std::vector<Measurement> measurements = {[&] {
                                                   const double step_s = load.memory_s();
                                                   compute_s.add(load.compute_s());
                                                   bound_s.add(load.clipped_bound_s());
                                                   return step_s;
                                                 },
                                                 [&] { return load.unclipped_s(); },
                                                 [&] { return load.clipped_s(); },
                                                 [&] { return load.drive_s(); }};
  const std::vector<Samples> samples = interleave(measurements, options.repetitions);
  const double compute = compute_s.median();
  const double drive = samples[kDrive].median();
  const std::string sides =
      fmt::format("compute {:.3f} s, drive {:.3f} s: {:.2f}", compute, drive, compute / drive);
  return {
      {.name = name + "_unclipped",
       .unit = BenchUnit::kSeconds,
       .value = samples[kUnclipped],
       .limit = samples[kMemory],
       .limit_is = "the same step with all its states in memory",
       .details = {{"each alone", sides},
                   of_rounds(samples[kUnclipped], samples[kMemory]),
                   {"busiest lane", fmt::format("{:.1f} %", 100 * load.busiest().median())},
                   {"busy lanes, last", load.busy_lanes()},
                   {"processor time", load.processor_time()}}},
      {.name = name + "_clipped",
       .unit = BenchUnit::kSeconds,
       .value = samples[kClipped],
       .limit = bound_s,
       .limit_is = "the longer of the drive alone and of compute with a forward no shorter than "
                   "the traffic that has to be between the norm and its end",
       .details = {{"each alone", sides},
                   {"traffic that has to be between norm and end of forward",
                    fmt::format("{:.1f} %", 100 * load.part_behind_norm())},
                   of_rounds(samples[kClipped], bound_s)}}};
}

}  // namespace

std::vector<BenchResult> bench_overlap(const BenchOptions& options, Log& log) {
  std::vector<BatchShape> batches = {
      {2, kOverlapSequence}, {4, kOverlapSequence}, {10, kOverlapSequence}};
  if (options.tokens != 0) batches = {{options.tokens / kOverlapSequence, kOverlapSequence}};
  if (options.small) batches = {{1, 32}};
  std::uint64_t space = 0;
  for (const BatchShape& batch : batches) {
    space = std::max(space, OverlapLoad::space(batch, options));
  }
  check_drives(options, space, log);
  std::vector<BenchResult> results;
  for (const BatchShape& batch : batches) {
    for (BenchResult& result : measure(batch, options, log)) {
      log.info(fmt::format("bench overlap: {}: {:.3f} s, limit {:.3f} s", result.name,
                           result.value.median(), result.limit.median()));
      results.push_back(std::move(result));
    }
  }
  return results;
}

}  // namespace terrace
