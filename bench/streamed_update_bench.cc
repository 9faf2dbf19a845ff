#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/bytes.h"
#include "bench/bench_engine.h"
#include "bench/bench_list.h"
#include "bench/drive_check.h"
#include "bench/idle_bodies.h"
#include "bench/usage_clock.h"
#include "kernels/cpu/cpu_kernels.h"
#include "memory/cpu/cpu_device.h"
#include "memory/host/host_memory.h"
#include "runtime/engine/home_access.h"
#include "runtime/engine/model_runtime.h"
#include "runtime/engine/step_bodies.h"
#include "runtime/model/model_config.h"

namespace terrace {
namespace {

ModelRuntimeOptions options_for(const BenchOptions& bench) {
  ModelRuntimeOptions options = bench_engine(load_model_config(bench.small ? "nano" : "gpt2-124m"),
                                             {1, 16}, DType::kBF16, bench);
  options.placement.homes[StateClass::kOptimizer] = Tier::kNvme;
  options.placement.has_nvme = true;
  return options;
}

// The updates that a step leaves to the next, as a program's drain runs them: state is read from
// NVMe chunk by chunk, updated, and written back, on the lanes of training. Parameters and
// gradients are in memory.
class StreamedUpdate {
 public:
  StreamedUpdate(const ModelRuntimeOptions& options, Log& log);

  // Returns the seconds for all parameters.
  double streamed() { return drain(*executor_); }
  // Does the same reads and writes in the same order, with nothing to do between them.
  double store_alone() { return drain(*idle_executor_); }
  // Does the same updates, on state that is in memory.
  double update_alone();

  double state_bytes() const { return state_bytes_; }
  int threads() const { return workers_.threads(); }

 private:
  std::unique_ptr<StepBodies> make_bodies(const ModelRuntimeOptions& options, BlockStore* store);
  void make_extents();
  void fill_state();
  void set_scalars();
  double drain(LaneExecutor& executor);
  bool is_update(const Op& op) const {
    return op.kind == OpKind::kUpdate && op.parts.contains(Part::kDrain);
  }

  const TierPlan plan_;
  const Program& program_;
  WorkerArena workers_;
  UnitCompute compute_;
  std::unique_ptr<Device> device_;
  HostMemory host_;
  std::unique_ptr<BlockStore> store_;
  ExecutorMemory memory_;
  SystemClock clock_;
  double state_bytes_ = 0;
  const RunInput input_;  // a drain has none of its own
  std::unique_ptr<StepBodies> bodies_;
  std::unique_ptr<StepBodies> bodies_in_memory_;  // on state that nothing was read into
  std::unique_ptr<IdleBodies> idle_;
  std::unique_ptr<LaneExecutor> executor_;
  std::unique_ptr<LaneExecutor> idle_executor_;
};

StreamedUpdate::StreamedUpdate(const ModelRuntimeOptions& options, Log& log)
    : plan_(plan_model(options)),
      program_(plan_.training.program),
      workers_(options.threads),
      compute_(options.model, parameter_layout(options.model),
               {options.compute_type, options.batch, {}}, cpu_kernels()),
      device_(make_cpu_device(0)),
      host_(program_.use_of(Tier::kHost).packed_bytes, HostMemoryOptions{}),
      store_(make_nvme_store(options.nvme, log)) {
  memory_.host = host_.bytes();
  make_extents();
  bodies_ = make_bodies(options, store_.get());
  bodies_in_memory_ = make_bodies(options, nullptr);
  fill_state();
  set_scalars();
  idle_ = std::make_unique<IdleBodies>(bodies_.get());
  executor_ = std::make_unique<LaneExecutor>(
      program_, memory_, LaneServices{*device_, store_.get(), *bodies_, clock_});
  idle_executor_ = std::make_unique<LaneExecutor>(
      program_, memory_, LaneServices{*device_, store_.get(), *idle_, clock_});
}

std::unique_ptr<StepBodies> StreamedUpdate::make_bodies(const ModelRuntimeOptions& options,
                                                        BlockStore* store) {
  return std::make_unique<StepBodies>(program_, memory_, store,
                                      StepComputation{plan_.model, compute_, options.optimizer,
                                                      cpu_lane_kernels(), workers_, workers_});
}

void StreamedUpdate::make_extents() {
  for (const std::size_t size : extent_sizes(program_)) {
    memory_.extents.push_back(store_->create_extent(size));
    state_bytes_ += static_cast<double>(size);
  }
  store_->prepare();
  store_->register_memory(host_.bytes());
}

void StreamedUpdate::fill_state() {
  HomeAccess homes(program_, plan_.model, memory_, *device_, store_.get());
  for (std::int32_t unit = 0; unit < static_cast<std::int32_t>(plan_.model.unit_count()); ++unit) {
    for (std::int64_t chunk = 0; chunk < plan_.model.chunks(unit); ++chunk) {
      homes.write(StateClass::kOptimizer, unit, chunk, [](std::size_t, std::span<std::byte> piece) {
        // Zeros, which updates leave as they are: the updates that are timed without the store
        // change memory that the next ones write. The first drain writes the zeros to the drive.
        std::ranges::fill(piece, std::byte{0});
        return true;
      });
    }
  }
}

// Sets the scalars that the step before leaves for its updates.
void StreamedUpdate::set_scalars() {
  const OptimizerOptions optimizer;  // as options_for() leaves it
  const StepScalars scalars{.learning_rate = 3e-4F,
                            .of_rule = optimizer.rule->step_scalars(optimizer.numbers, 1, 3e-4)};
  for (const Op& op : program_.ops) {
    if (!is_update(op)) continue;
    std::memcpy(bytes_of(program_, memory_, *op.find(Role::kScalars)).data(), &scalars,
                sizeof(scalars));
    return;
  }
}

double StreamedUpdate::drain(LaneExecutor& executor) {
  const UsageClock usage;
  executor.start(Part::kDrain, input_);
  executor.retire();
  return usage.wall_seconds();
}

double StreamedUpdate::update_alone() {
  const UsageClock usage;
  for (const Op& op : program_.ops) {
    if (is_update(op)) bodies_in_memory_->run(op, input_, NativeStream{});
  }
  return usage.wall_seconds();
}

}  // namespace

void check_streamed_update(const BenchOptions& options, Log& log) {
  check_drives(options, nvme_bytes(options_for(options)), log);
}

BenchCost cost_of_streamed_update(const BenchOptions& options, const MachineSpeed& speed) {
  const auto bytes = static_cast<double>(nvme_bytes(options_for(options)));
  const double passes = 2.0 * options.repetitions;  // with updates, and the store alone
  // All state is written once to begin with; each pass reads and writes all of it.
  return {.seconds = (1 + 2 * passes) * bytes / speed.drive_write_bytes_per_s,
          .written_bytes = static_cast<std::uint64_t>((1 + passes) * bytes)};
}

void bench_streamed_update(const BenchOptions& options, BenchRecord& record, Log& log) {
  StreamedUpdate load(options_for(options), log);
  log.info(fmt::format("bench optimizer: streamed update of {} of state",
                       format_size(static_cast<std::size_t>(load.state_bytes()))));
  const std::vector<Measurement> measurements = {[&] { return load.streamed(); },
                                                 [&] { return load.store_alone(); },
                                                 [&] { return load.update_alone(); }};
  const auto rate = [&](double seconds) { return 2e-9 * load.state_bytes() / seconds; };
  interleave(
      measurements, record.rounds(options.repetitions), [&](const std::vector<Samples>& samples) {
        const bool store_is_slower = samples[1].median() >= samples[2].median();
        record.put({.name = "streamed_update",
                    .unit = BenchUnit::kSeconds,
                    .value = samples[0],
                    .limit = samples[store_is_slower ? 1 : 2],
                    .limit_is = store_is_slower ? "the store alone, which is slower than the "
                                                  "update alone"
                                                : "the update alone, which is slower than the "
                                                  "store alone",
                    .details = {{"state_read_and_written", "GB/s", samples[0].mapped(rate)},
                                {"store_alone", "s", samples[1]},
                                {"store_alone_rate", "GB/s", samples[1].mapped(rate)},
                                {"update_alone", "s", samples[2]},
                                {"update_alone_rate", "GB/s", samples[2].mapped(rate)},
                                number_detail("update_threads", "threads", load.threads())}});
      });
}

}  // namespace terrace
