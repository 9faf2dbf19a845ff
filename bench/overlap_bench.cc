// Measures steps of gpt2-124m whose states are on NVMe beside the same steps in memory, from few
// tokens, where the drive is slower, to many, where compute is slower.

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "bench/bench_engine.h"
#include "bench/bench_list.h"
#include "bench/bench_only.h"
#include "bench/drive_check.h"
#include "bench/idle_bodies.h"
#include "bench/norm_wait.h"
#include "bench/step_runner.h"

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

// The engines of one batch size.
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

  // Returns the bytes on the drives that all its engines take.
  static std::uint64_t space(const BatchShape& batch, const BenchOptions& options) {
    return 2 * (nvme_bytes(on_nvme(batch, options, 0, nullptr)) +
                nvme_bytes(on_nvme(batch, options, 1, nullptr)));
  }

  double memory_s() {
    const double step_s = memory_.step_seconds(kOverlapSteps);
    forward_s_ = seconds_of_ops(memory_, {OpKind::kForward});
    backward_s_ = seconds_of_ops(memory_, {OpKind::kRecompute, OpKind::kBackward});
    return step_s;
  }
  double compute_s() const { return forward_s_ + backward_s_; }

  double unclipped_s() {
    const double step_s = unclipped_.step_seconds(kOverlapSteps);
    busiest_.add(*std::ranges::max_element(unclipped_.busy_s()) / step_s);
    return step_s;
  }
  double clipped_s() { return clipped_.step_seconds(kOverlapSteps); }
  double drive_s() { return unclipped_idle_.step_seconds(kOverlapSteps); }

  // Returns the least seconds that a clipped step needs, from the times of the last memory_s().
  double clipped_bound_s() {
    const double drive_s = clipped_idle_.step_seconds(kOverlapSteps);
    const double behind_norm_s = drive_s * part_behind_norm();
    return std::max(drive_s, backward_s_ + std::max(forward_s_, behind_norm_s));
  }
  // Returns which part of a clipped step's reads and writes has to wait for the norm.
  double part_behind_norm() const {
    const Program& program = clipped_idle_.program();
    return bytes_behind_norm(program) /
           (lane_bytes(program, Lane::kRead) + lane_bytes(program, Lane::kWrite));
  }

  // The part of an unclipped step in which its busiest lane was busy, once for each unclipped_s().
  const Samples& busiest() const { return busiest_; }
  // The busy seconds of the lanes in the last unclipped_s().
  const std::array<double, kLaneCount>& busy_s() const { return unclipped_.busy_s(); }
  // The seconds of all processors, for a step.
  const Samples& processor_s() const { return unclipped_.processor_seconds(); }
  const Samples& memory_processor_s() const { return memory_.processor_seconds(); }
  void forget() {
    busiest_ = {};
    memory_.forget();
    unclipped_.forget();
  }

 private:
  static ModelRuntimeOptions engine(const BatchShape& batch, const BenchOptions& options) {
    ModelRuntimeOptions engine = bench_engine(
        load_model_config(options.small ? "nano" : "gpt2-124m"), batch, DType::kBF16, options);
    engine.optimizer.max_grad_norm = 0;
    return engine;
  }
  static ModelRuntimeOptions on_nvme(const BatchShape& batch, const BenchOptions& options,
                                     double max_grad_norm, OpBodies* bodies) {
    ModelRuntimeOptions on_drive = engine(batch, options);
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
};

enum OverlapPlace : std::size_t { kMemory, kUnclipped, kClipped, kDrive };

std::string name_of(const BatchShape& batch, const BenchOptions& options) {
  return fmt::format("{}_bf16_{}_tokens", options.small ? "nano" : "gpt2_124m", batch.rows());
}

std::vector<BenchResult::Detail> sides_of(const Samples& compute_s, const Samples& drive_s) {
  return {{"compute_alone", "s", compute_s},
          {"drive_alone", "s", drive_s},
          {"compute_over_drive", "", ratios_of_rounds(compute_s, drive_s)}};
}

// Seconds of the same rounds.
struct OverlapSamples {
  const std::vector<Samples>& places;  // by OverlapPlace
  const Samples& compute_s;
  const Samples& bound_s;  // of a clipped step
};

void put_results(const std::string& name, const OverlapLoad& load, const OverlapSamples& of_rounds,
                 BenchRecord& record) {
  const auto& [samples, compute_s, bound_s] = of_rounds;
  BenchResult unclipped = {.name = name + "_unclipped",
                           .unit = BenchUnit::kSeconds,
                           .value = samples[kUnclipped],
                           .limit = samples[kMemory],
                           .limit_is = "the same step with all states in memory",
                           .details = sides_of(compute_s, samples[kDrive])};
  unclipped.details.push_back({"busiest_lane", "of a step", load.busiest()});
  add_busy(unclipped.details, "busy", load.busy_s(), samples[kUnclipped].values().back());
  unclipped.details.push_back({"processor_time", "s", load.processor_s()});
  unclipped.details.push_back({"processor_time_in_memory", "s", load.memory_processor_s()});
  record.put(std::move(unclipped));
  BenchResult clipped = {
      .name = name + "_clipped",
      .unit = BenchUnit::kSeconds,
      .value = samples[kClipped],
      .limit = bound_s,
      .limit_is =
          "the longer of two times: the drive alone, and compute with a forward that lasts at "
          "least as long as the traffic that must run between the norm and the forward's end",
      .details = sides_of(compute_s, samples[kDrive])};
  clipped.details.push_back(number_detail("traffic_between_norm_and_end_of_forward",
                                          "of a step's traffic", load.part_behind_norm()));
  record.put(std::move(clipped));
}

void measure(const BatchShape& batch, const BenchOptions& options, double share,
             BenchRecord& record, Log& log) {
  const std::string name = name_of(batch, options);
  log.info(fmt::format("bench overlap: {}, {} rounds", name, options.repetitions));
  const auto owned = std::make_unique<OverlapLoad>(batch, options, log);  // large for a stack
  OverlapLoad& load = *owned;
  load.memory_s();
  load.unclipped_s();
  load.forget();
  // A bound is made of the times of a step in memory, so both are taken together.
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
  interleave(measurements, record.rounds(options.repetitions, share),
             [&](const std::vector<Samples>& samples) {
               put_results(name, load, {samples, compute_s, bound_s}, record);
             });
}

// A batch, and the options that it is measured with.
struct OverlapPart {
  BatchShape batch;
  BenchOptions options;
};

std::vector<std::string> names_of(const OverlapPart& part) {
  const std::string name = name_of(part.batch, part.options);
  return {name + "_unclipped", name + "_clipped"};
}

std::vector<OverlapPart> all_parts(const BenchOptions& options) {
  const BatchShape small = {1, 32};
  if (options.small) return {{small, options}};
  std::vector<OverlapPart> parts;
  if (const auto quick = quick_options(options)) parts.push_back({small, *quick});
  const std::vector<std::int64_t> sequences =
      options.tokens != 0 ? std::vector<std::int64_t>{options.tokens / kOverlapSequence}
                          : std::vector<std::int64_t>{2, 4, 10};
  for (const std::int64_t count : sequences) parts.push_back({{count, kOverlapSequence}, options});
  return parts;
}

// Returns the parts of which a result is wanted.
std::vector<OverlapPart> parts_of(const BenchOptions& options) {
  std::vector<OverlapPart> parts = all_parts(options);
  std::erase_if(parts,
                [&](const OverlapPart& part) { return !any_is_wanted(options, names_of(part)); });
  return parts;
}

// Returns the cost of `rounds` rounds of a part. It has four engines on the drive; a step of each
// reads and writes all its state.
BenchCost cost_of(const OverlapPart& part, int rounds, const MachineSpeed& speed) {
  const char* const preset = part.options.small ? "nano" : "gpt2-124m";
  const double step_s =
      flops_of_model_step(load_model_config(preset), part.batch.rows()) / speed.bf16_flops_per_s;
  const auto bytes = static_cast<double>(OverlapLoad::space(part.batch, part.options)) / 4;
  const double drive_s = 2 * bytes / speed.drive_write_bytes_per_s;
  const double measurements = 5.0 * rounds + 2;
  return {.seconds = kOverlapSteps * measurements * std::max(step_s, drive_s) + 4 * drive_s,
          .written_bytes = static_cast<std::uint64_t>(bytes * (4 + 4 * kOverlapSteps * rounds))};
}

// Returns whether a round of the part may end in time if the machine is twice as fast as it seemed.
// If not, its files, of some GB, would be made for nothing, and take long to remove.
bool may_fit(const OverlapPart& part, const BenchRecord& record) {
  constexpr double kHope = 0.5;
  const MachineSpeed* const speed = part.options.speed;
  return speed == nullptr || part.options.small ||
         kHope * cost_of(part, 1, *speed).seconds < record.end().seconds_left();
}

}  // namespace

std::vector<std::string> names_of_overlap(const BenchOptions& options) {
  std::vector<std::string> names;
  for (const OverlapPart& part : all_parts(options)) {
    for (std::string& name : names_of(part)) names.push_back(std::move(name));
  }
  return names;
}

BenchCost cost_of_overlap(const BenchOptions& options, const MachineSpeed& speed) {
  BenchCost cost;
  for (const OverlapPart& part : parts_of(options)) {
    const BenchCost more = cost_of(part, options.repetitions, speed);
    cost.seconds += more.seconds;
    cost.written_bytes += more.written_bytes;
  }
  return cost;
}

void bench_overlap(const BenchOptions& options, BenchRecord& record, Log& log) {
  const std::vector<OverlapPart> parts = parts_of(options);
  std::uint64_t space = 0;
  for (const OverlapPart& part : parts) {
    space = std::max(space, OverlapLoad::space(part.batch, part.options));
    record.expect(names_of(part));
  }
  check_drives(options, space, log);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    record.check_time();
    if (!may_fit(parts[i], record)) throw TimeIsUp();
    const bool is_quick = parts[i].options.small && !options.small;
    const double share = is_quick ? 0.15 : 1 / static_cast<double>(parts.size() - i);
    measure(parts[i].batch, parts[i].options, share, record, log);
  }
}

}  // namespace terrace
