#include "bench/profile_load.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <limits>
#include <stop_token>
#include <thread>

#include "base/check.h"
#include "base/hash.h"
#include "bench/step_runner.h"
#include "bench/usage_clock.h"
#include "kernels/cpu/cpu_kernels.h"
#include "memory/cpu/cpu_device.h"
#include "memory/host/streaming_copy.h"
#include "runtime/engine/home_access.h"

namespace terrace {
namespace {

// The kernel gives a thread that never stops a core of its own. When a thread wakes up instead, a
// thread of compute gives way.
constexpr double kPausePerUpdateTime = 3;
constexpr double kTransferSecondsMax = 60;  // beside the compute of a step, which ends them

ModelRuntimeOptions in_memory(ModelRuntimeOptions engine) {
  PlacementRequest request;
  request.homes[StateClass::kParameters] = request.homes[StateClass::kGradients] = Tier::kHost;
  request.homes[StateClass::kOptimizer] = request.homes[StateClass::kActivations] = Tier::kHost;
  request.micro_batches = 2;
  request.order = MicroBatchOrder::kMicroBatchMajor;
  request.lookahead = 1;
  engine.placement = request;
  engine.budgets = {};
  engine.optimizer.max_grad_norm = 1.0;
  engine.evaluates = false;
  return engine;
}

Program every_second_recomputed(const TierPlan& plan) {
  StepPolicy policy = plan.training.policy;
  for (std::size_t u = 1; u + 1 < policy.activations.size(); u += 2) {
    policy.activations[u].recompute = true;
  }
  return compile_step(plan.model, policy, {});
}

}  // namespace

// Updates of the embedding in memory of their own, where all is zero. Nothing that they write is
// used.
class OpsAlone::UpdatesBeside {
 public:
  explicit UpdatesBeside(OpsAlone& ops)
      : input_(ops.input_),
        update_workers_(ops.options_.update_threads),
        host_(ops.host_.bytes().size(), HostMemoryOptions{}),
        memory_{.device = {}, .host = host_.bytes(), .extents = {}},
        bodies_(ops.program_, memory_, nullptr,
                {ops.plan_.model, ops.compute_, ops.options_.optimizer, cpu_lane_kernels(),
                 update_workers_, update_workers_}) {
    for (const Op& op : ops.program_.ops) {
      if (op.kind == OpKind::kNormFinish) bodies_.run(op, input_, NativeStream{});  // the scalars
      if (op.kind == OpKind::kUpdate && op.unit == 0) updates_.push_back(&op);
    }
  }
  ~UpdatesBeside() { stopped_.request_stop(); }

  // Returns the seconds of an update on average, when one follows another.
  double seconds_of_one() {
    double least_s = std::numeric_limits<double>::infinity();
    for (int round = 0; round < 5; ++round) {
      const UsageClock clock;
      for (const Op* op : updates_) bodies_.run(*op, input_, NativeStream{});
      least_s = std::min(least_s, clock.wall_seconds());
    }
    return least_s / static_cast<double>(updates_.size());
  }

  void start(double pause_s) {
    stopped_ = {};
    per_s_ = std::async(std::launch::async, [this, pause_s, stopped = stopped_.get_token()] {
      const UsageClock clock;
      std::size_t done = 0;
      do {  // one at least: on a busy machine the thread may begin when all is over
        bodies_.run(*updates_[done++ % updates_.size()], input_, NativeStream{});
        if (pause_s > 0) std::this_thread::sleep_for(std::chrono::duration<double>(pause_s));
      } while (!stopped.stop_requested());
      return static_cast<double>(done) / clock.wall_seconds();
    });
  }
  // Returns the updates per second since start().
  double stop() {
    stopped_.request_stop();
    return per_s_.get();
  }

 private:
  const RunInput input_;
  WorkerArena update_workers_;
  HostMemory host_;
  ExecutorMemory memory_;
  StepBodies bodies_;
  std::vector<const Op*> updates_;
  std::stop_source stopped_;
  std::future<double> per_s_;  // its destructor waits for the updates
};

OpsAlone::OpsAlone(ModelRuntimeOptions engine)
    : options_(in_memory(std::move(engine))),
      plan_(plan_model(options_)),
      program_(every_second_recomputed(plan_)),
      layout_(parameter_layout(options_.model)),
      workers_(options_.threads),
      update_workers_(options_.update_threads),
      compute_(options_.model, layout_, {options_.compute_type, options_.batch, {}}, cpu_kernels()),
      device_(make_cpu_device(0)),
      host_(program_.use_of(Tier::kHost).packed_bytes, HostMemoryOptions{}),
      memory_{.device = {}, .host = host_.bytes(), .extents = {}},
      bodies_(program_, memory_, nullptr,
              {plan_.model, compute_, options_.optimizer, cpu_lane_kernels(), workers_,
               update_workers_}),
      tokens_(made_up_tokens(options_.batch.rows(), program_.micro_batches)),
      idle_executor_(program_, memory_, {*device_, nullptr, idle_, clock_}) {
  HomeAccess homes(program_, plan_.model, memory_, *device_, nullptr);
  UnitState state(homes, plan_.model, options_.optimizer);
  TrainingState(state, layout_).fill_from(RandomState(1234), workers_);
  const std::vector<float> table = compute_.constants();
  for (const Buffer& buffer : program_.buffers) {
    if (buffer.name != "rope table") continue;
    std::memcpy(host_.bytes().data() + buffer.offset, table.data(), table.size() * sizeof(float));
  }
  input_.tokens = std::as_bytes(std::span(tokens_));
  input_.target_tokens = static_cast<std::int64_t>(tokens_.size() / 2);
  input_.scalars.learning_rate = 1e-5F;
  input_.learning_rate = 3e-4;
  run_all(Part::kPrologue, nullptr);
}

OpsAlone::~OpsAlone() = default;

void OpsAlone::measure(MachineProfile& profile) {
  Times times;
  run_all(Part::kBody, &times);
  for (const auto& [op, seconds] : times) profile.seconds_per_work[op] = seconds.median();
  const UsageClock clock;
  idle_executor_.start(Part::kPrologue, input_);
  idle_executor_.retire();
  const auto compute_ops =
      std::ranges::count_if(program_.ops, [](const Op& op) { return op.lane == Lane::kCompute; });
  profile.op_overhead_s = clock.wall_seconds() / static_cast<double>(compute_ops);
}

void OpsAlone::run_all(Part part, Times* times) {
  for (const Op& op : program_.ops) {
    if (!op.parts.contains(part)) continue;
    const double seconds = run(op);
    const double work = work_of(program_, op);
    if (times != nullptr && work > 0) (*times)[class_of(program_, op)].add(seconds / work);
  }
}

double OpsAlone::update_displacement(const MachineProfile& profile, bool pauses) {
  if (profile.compute_cores + profile.update_cores <= profile.cores) return 1;
  if (updates_beside_ == nullptr) updates_beside_ = std::make_unique<UpdatesBeside>(*this);
  const double update_s = updates_beside_->seconds_of_one();
  const double alone_s = compute_seconds();
  updates_beside_->start(pauses ? kPausePerUpdateTime * update_s : 0);
  const double together_s = compute_seconds();
  const double taken = profile.update_cores * update_s * updates_beside_->stop();
  const double lost = profile.compute_cores * (1 - alone_s / together_s);
  return std::max(1.0, lost / taken);
}

double OpsAlone::transfer_displacement(const MachineProfile& profile, StoreLoad& load) {
  const DriveRates& drive = profile.drive;
  const double core_s_per_byte =
      (drive.read_cores / drive.read_bytes_per_s + drive.write_cores / drive.write_bytes_per_s) / 2;
  const double cores_wanted = profile.compute_cores + drive.disk_bytes_per_s * core_s_per_byte;
  if (cores_wanted <= profile.cores || core_s_per_byte == 0) return 1;
  const double alone_s = compute_seconds();
  std::stop_source computed;
  auto transfers = std::async(std::launch::async, [&, stopped = computed.get_token()] {
    return load.run({.mix = IoMix::kMixed, .seconds = kTransferSecondsMax, .stopped = stopped});
  });
  const double together_s = compute_seconds();
  computed.request_stop();
  const double taken = transfers.get().gb_per_s * 1e9 * core_s_per_byte;
  const double left = std::min(profile.compute_cores, profile.cores - taken);
  const double had = profile.compute_cores * alone_s / together_s;
  return 1 + std::max(0.0, left - had) / taken;
}

// Returns the seconds of a step's compute. It runs no updates, so the state stays as it is.
double OpsAlone::compute_seconds() {
  double seconds = 0;
  for (const Op& op : program_.ops) {
    if (!op.parts.contains(Part::kPrologue)) continue;
    const double op_s = run(op);
    if (op.lane == Lane::kCompute) seconds += op_s;
  }
  return seconds;
}

double OpsAlone::run(const Op& op) {
  const UsageClock clock;
  if (op.kind == OpKind::kInput) {
    const std::span<std::byte> target = bytes_of(program_, memory_, op.writes.front());
    std::memcpy(target.data(), input_.tokens.data(), input_.tokens.size());
  } else {
    bodies_.run(op, input_, NativeStream{});
  }
  return clock.wall_seconds();
}

CopiesAlone::CopiesAlone(std::size_t size_bytes, int threads)
    : device_(make_cpu_device(size_bytes)),
      on_device_(device_->allocate(size_bytes)),
      stream_(device_->create_stream("copies")),
      host_(size_bytes, HostMemoryOptions{}),
      workers_(threads) {}

void CopiesAlone::measure(MachineProfile& profile) {
  const std::span<std::byte> host = host_.bytes();
  const std::span<std::byte> device = on_device_->bytes();
  const auto rate = [&](std::span<std::byte> target, std::span<const std::byte> source) {
    const UsageClock clock;
    stream_->copy(target, source);
    stream_->synchronize();
    return static_cast<double>(target.size()) / clock.wall_seconds();
  };
  profile.upload_bytes_per_s = rate(device, host);
  profile.download_bytes_per_s = rate(host, device);
  profile.copy_cores = 1;
  profile.seconds_per_work[{.kind = OpKind::kAccumulate}] = seconds_per_byte_added();
  const auto threads = static_cast<std::size_t>(workers_.threads());
  const std::size_t part = host.size() / threads;
  const UsageClock clock;
  workers_.parallel_for(workers_.threads(), [&](std::int64_t index, int) {
    const std::size_t begin = static_cast<std::size_t>(index) * part;
    streaming_copy(device.subspan(begin, part), host.subspan(begin, part));
  });
  // Every byte is read once and written once.
  profile.memory_bytes_per_s = 2 * static_cast<double>(threads * part) / clock.wall_seconds();
}

// Returns the seconds per byte. The sum is read and written, and the addend is read.
double CopiesAlone::seconds_per_byte_added() {
  const auto floats = [](std::span<std::byte> bytes) {
    return view(bytes.data(), DType::kF32, static_cast<std::int64_t>(bytes.size() / sizeof(float)));
  };
  const LaneKernels kernels = cpu_lane_kernels();
  KernelContext context;
  context.workers = &workers_;
  context.products = kernels.products;
  const UsageClock clock;
  kernels.table->accumulate_gradient(context, {floats(on_device_->bytes()), floats(host_.bytes())});
  return clock.wall_seconds() / (3.0 * static_cast<double>(host_.bytes().size()));
}

DriveRates measure_drive(StoreLoad& load, double seconds) {
  const auto cores = [](const IoRate& rate) { return rate.gb_per_s * rate.cpu_ms_per_gb * 1e-3; };
  const IoRate read = load.run({.mix = IoMix::kRead, .seconds = seconds});
  const IoRate write = load.run({.mix = IoMix::kWrite, .seconds = seconds});
  const IoRate mixed = load.run({.mix = IoMix::kMixed, .seconds = seconds});
  return {.read_bytes_per_s = read.gb_per_s * 1e9,
          .write_bytes_per_s = write.gb_per_s * 1e9,
          .disk_bytes_per_s = mixed.gb_per_s * 1e9,
          .read_cores = cores(read),
          .write_cores = cores(write)};
}

double checksum_seconds_per_byte(double seconds) {
  // The memory that an update has before it: more than the first cache holds.
  constexpr std::size_t kBlocks = 16;
  const std::vector<std::byte> memory(kBlocks * kChecksumBytes, std::byte{1});
  const UsageClock usage;
  std::uint64_t sum = 0;
  std::size_t bytes = 0;
  do {
    for (std::size_t block = 0; block < kBlocks; ++block) {
      sum += hash_bytes(std::span(memory).subspan(block * kChecksumBytes, kChecksumBytes));
    }
    bytes += memory.size();
  } while (usage.wall_seconds() < seconds);
  TERRACE_CHECK_NE(sum, 0U);  // it was computed
  return usage.wall_seconds() / static_cast<double>(bytes);
}

}  // namespace terrace
