#include "runtime/train/op_times.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "memory/host/host_memory.h"
#include "memory/host/streaming_copy.h"
#include "runtime/model/experts_layer.h"
#include "runtime/step/coded_exchange.h"
#include "runtime/step/homes.h"
#include "runtime/train/seconds_of.h"
#include "runtime/train/stream_timer.h"

namespace terrace {
namespace {

// Returns whether the op only computes: it waits for nobody and moves nothing.
bool is_timed(const Op& op) {
  if (!is_of_kind(op.lane, LaneKind::kCompute)) return false;
  switch (op.kind) {
    case OpKind::kForward:
    case OpKind::kRecompute:
    case OpKind::kBackward:
    case OpKind::kAccumulate:
    case OpKind::kRoundGradient:
    case OpKind::kEncode:
    case OpKind::kDecode:
    case OpKind::kDecodeSum:
    case OpKind::kNormPartials:
    case OpKind::kUpdate:
      return true;
    default:
      return false;
  }
}

// Returns whether the op runs on the device, if this has memory of its own.
bool runs_on_device(const Program& program, const Op& op) {
  return op.lane == Lane::kCompute || codes_on_device(program, op);
}

using OpOfClass = std::pair<OpClass, const Op*>;

// Returns one op of each class that has no time yet: the one with the most work. Short ops come
// first, so that all of them have a time where there is none for long ones. Products alone predict
// long ops better than short ones.
std::vector<OpOfClass> one_of_each_class(const Program& program, const MachineProfile& profile) {
  std::map<OpClass, const Op*> ops;
  for (const Op& op : program.ops) {
    if (!is_timed(op) || work_of(program, op) <= 0) continue;
    const OpClass op_class = class_of(program, op);
    if (profile.seconds_per_work.contains(op_class)) continue;
    const Op*& known = ops[op_class];
    if (known == nullptr || work_of(program, *known) < work_of(program, op)) known = &op;
  }
  std::vector<OpOfClass> in_order(ops.begin(), ops.end());
  std::ranges::stable_sort(in_order, {},
                           [](const OpOfClass& one) { return one.second->cost.flops; });
  return in_order;
}

// The part of a buffer that an op touches: [begin, end), and where it is put.
struct TouchedBytes {
  std::size_t begin = 0;
  std::size_t end = 0;
  Tier tier = Tier::kHost;
  std::size_t at = 0;  // in the arena of the tier
};

// The bytes of an arena of the host and of an arena of the device.
struct ArenaBytes {
  std::size_t host = 0;
  std::size_t device = 0;

  std::size_t& of(Tier tier) { return tier == Tier::kDevice ? device : host; }
};

// The buffers that an op touches, side by side in an arena for each tier.
struct TouchedMemory {
  std::map<BufferId, TouchedBytes> buffers;
  ArenaBytes bytes;
};

// `has_device`: the device has memory of its own. Otherwise all buffers are on the host.
TouchedMemory touched_by(const Program& program, const Op& op, bool has_device) {
  TouchedMemory touched;
  for (const auto* accesses : {&op.reads, &op.writes}) {
    for (const Access& access : *accesses) {
      const std::size_t end = access.offset + access.size_bytes;
      const Tier tier = has_device ? program.buffers.at(access.buffer).tier : Tier::kHost;
      const auto [known, is_new] =
          touched.buffers.try_emplace(access.buffer, TouchedBytes{access.offset, end, tier});
      known->second.begin = std::min(known->second.begin, access.offset);
      known->second.end = std::max(known->second.end, end);
    }
  }
  for (auto& [buffer, bytes] : touched.buffers) {
    std::size_t& used = touched.bytes.of(bytes.tier);
    bytes.at = round_up(used, 4096);
    used = bytes.at + bytes.end - bytes.begin;
  }
  return touched;
}

// The first run of an op also loads its kernels. So it only counts where the op takes longer than
// this.
constexpr double kLongS = 0.5;
// Shorter ops are run again once, or a few times up to this time; the fastest counts.
constexpr double kEnoughS = 0.02;

// The memory and the timer of a device that has memory of its own.
class DeviceArena {
 public:
  DeviceArena(Device& device, std::size_t size_bytes)
      : memory_(device.allocate(std::max<std::size_t>(size_bytes, 1))), timer_(device) {}

  std::span<std::byte> bytes() const { return memory_->bytes(); }
  StreamTimer& timer() { return timer_; }

 private:
  const std::unique_ptr<DeviceMemory> memory_;
  StreamTimer timer_;
};

class OpTimer {
 public:
  OpTimer(const OpMeasurement& measurement, const ArenaBytes& arenas)
      : options_(measurement.options),
        model_(measurement.plan.model),
        program_(measurement.plan.training.program),
        memory_(std::max<std::size_t>(arenas.host, 1), {.numa_nodes = options_.numa_nodes}),
        workers_(options_.threads, options_.cpus),
        update_workers_(options_.update_threads, options_.cpus),
        compute_(unit_compute_of(options_)) {
    executor_memory_.host = memory_.bytes();
    LaneKernels kernels = cpu_lane_kernels();
    if (measurement.device != nullptr) {
      kernels = measurement.device->kernels();
      device_.emplace(measurement.device->device(), arenas.device);
      executor_memory_.device = device_->bytes();
      executor_memory_.host_reaches_device = false;
      prepare(kernels);
    }
    bodies_.emplace(program_, executor_memory_, nullptr,
                    StepComputation{measurement.plan.model, compute_, options_.optimizer, kernels,
                                    workers_, update_workers_},
                    options_.ranks);
    input_.target_tokens = options_.batch.rows() * program_.micro_batches;
    input_.learning_rate = 1e-5;
  }

  // Returns the seconds of an op.
  double seconds(const Op& op) {
    place(op);
    if (device_ && runs_on_device(program_, op)) {
      return device_->timer().seconds_of(
          [&](NativeStream stream) { bodies_->run(op, input_, stream); });
    }
    const auto run = [&] { bodies_->run(op, input_, NativeStream{}); };
    const double first_s = seconds_of(run);
    if (first_s > kLongS) return first_s;
    double least_s = std::numeric_limits<double>::infinity();
    double spent_s = 0;
    for (int tries = 0; tries == 0 || (tries < 20 && spent_s < kEnoughS); ++tries) {
      const double again_s = seconds_of(run);
      spent_s += again_s;
      least_s = std::min(least_s, again_s);
    }
    return least_s;
  }

 private:
  // Loads what attention needs, as the engine does before its first step.
  void prepare(const LaneKernels& kernels) {
    KernelContext context;
    context.workers = &workers_;
    context.products = kernels.products;
    context.attention = kernels.attention;
    compute_.prepare(context);
  }

  // Puts what the op touches into the arenas, and fills it.
  void place(const Op& op) {
    const TouchedMemory touched = touched_by(program_, op, device_.has_value());
    for (const auto& [id, bytes] : touched.buffers) {
      Buffer& buffer = program_.buffers.at(id);
      buffer.tier = bytes.tier;
      buffer.offset = bytes.at - bytes.begin;  // so that the first byte that is touched is at `at`
    }
    // These bytes are small positive numbers in every type.
    std::memset(memory_.bytes().data(), 0x3c, touched.bytes.host);
    if (device_) device_->timer().fill(device_->bytes().first(touched.bytes.device));
    fill_tokens(op);
    fill_scalars(op);
    fill_routes(op);
  }

  // A part of a layer of experts reads which rows each expert has.
  void fill_routes(const Op& op) {
    for (const Access& read : op.reads) {
      if (read.role != Role::kBetween) continue;
      const BetweenBuffer& buffer = model_.units.at(static_cast<std::size_t>(op.unit))
                                        .between.at(static_cast<std::size_t>(read.number));
      const std::vector<std::int32_t> numbers =
          even_route(options_.model.experts, options_.batch.rows(), buffer.name);
      if (!numbers.empty()) put(read, 0, std::as_bytes(std::span(numbers)));
    }
  }

  // Writes bytes to where the access finds them, `at` bytes behind its begin.
  void put(const Access& access, std::size_t at, std::span<const std::byte> bytes) {
    const std::span<std::byte> target =
        terrace::bytes_of(program_, executor_memory_, access).subspan(at, bytes.size());
    if (program_.buffers.at(access.buffer).tier == Tier::kDevice) {
      device_->timer().put(target, bytes);
    } else {
      std::ranges::copy(bytes, target.begin());
    }
  }

  // An update reads its scalars, one set for each rule.
  void fill_scalars(const Op& op) {
    const Access* access = op.find(Role::kScalars);
    if (access == nullptr) return;
    StepScalars scalars;
    scalars.learning_rate = 1e-5F;
    scalars.step = 1;
    for (std::size_t at = 0; at + sizeof scalars <= access->size_bytes; at += kScalarBytes) {
      put(*access, at, std::as_bytes(std::span(&scalars, 1)));
    }
  }

  void fill_tokens(const Op& op) {
    const Access* access = op.find(Role::kTokens);
    if (access == nullptr) return;
    const std::size_t one = compute_.tokens_bytes();
    const std::vector<std::int32_t> numbers = numbers_of_micro_batch();
    for (std::size_t at = 0; at + one <= access->size_bytes; at += one) {
      put(*access, at, std::as_bytes(std::span(numbers)));
    }
  }

  // Returns the lists of RowNumbers, for sequences of one document each.
  std::vector<std::int32_t> numbers_of_micro_batch() const {
    const BatchShape& batch = options_.batch;
    std::vector<std::int32_t> numbers(
        static_cast<std::size_t>(batch.number_lists() * batch.rows()));
    const auto fill = [&](RowNumbers list, const auto& number) {
      const std::int64_t place = batch.place_of(list);
      if (place < 0) return;
      for (std::int64_t row = 0; row < batch.rows(); ++row) {
        numbers[static_cast<std::size_t>(place * batch.rows() + row)] =
            static_cast<std::int32_t>(number(row));
      }
    };
    // Tokens are spread over the vocabulary, as in a text.
    const auto token = [&](std::int64_t row) { return row * 7919 % options_.model.vocabulary; };
    fill(RowNumbers::kTokens, token);
    fill(RowNumbers::kTargets, [&](std::int64_t row) { return token(row + 1); });
    fill(RowNumbers::kPositions, [&](std::int64_t row) { return row % batch.positions; });
    fill(RowNumbers::kSamples, [&](std::int64_t row) { return row / batch.positions; });
    return numbers;
  }

  const ModelRuntimeOptions& options_;
  const StepModel& model_;
  Program program_;  // with the places of the op that is being timed
  HostMemory memory_;
  std::optional<DeviceArena> device_;
  ExecutorMemory executor_memory_;
  WorkerArena workers_;
  WorkerArena update_workers_;
  UnitCompute compute_;
  std::optional<StepBodies> bodies_;
  RunInput input_;
};

}  // namespace

bool measure_ops(const OpMeasurement& measurement, MachineProfile& profile) {
  const auto begin = std::chrono::steady_clock::now();
  const Program& program = measurement.plan.training.program;
  const bool has_device = measurement.device != nullptr;
  const std::size_t device_bytes_most =
      has_device ? measurement.device->device().free_bytes() : SIZE_MAX;
  std::vector<OpOfClass> ops = one_of_each_class(program, profile);
  ArenaBytes arenas;
  bool has_all = std::erase_if(ops, [&](const OpOfClass& one) {
                   const ArenaBytes bytes = touched_by(program, *one.second, has_device).bytes;
                   if (bytes.host > measurement.bytes_most || bytes.device > device_bytes_most) {
                     return true;
                   }
                   arenas.host = std::max(arenas.host, bytes.host);
                   arenas.device = std::max(arenas.device, bytes.device);
                   return false;
                 }) == 0;
  OpTimer timer(measurement, arenas);
  for (const auto& [op_class, op] : ops) {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    const bool on_stream = has_device && runs_on_device(program, *op);
    const double least_s = on_stream ? StreamTimer::kSettleS + StreamTimer::kEnoughS : 0;
    const double expected_s = std::max(op->cost.flops / profile.flops_per_s, least_s);
    if (passed.count() + expected_s > measurement.seconds_most) {
      has_all = false;
    } else {
      profile.seconds_per_work[op_class] = timer.seconds(*op) / work_of(program, *op);
    }
  }
  return has_all;
}

void measure_copies(const ModelRuntimeOptions& options, MachineProfile& profile) {
  constexpr std::size_t kHalf = 64 * kMiB;
  HostMemory memory(2 * kHalf, {.numa_nodes = options.numa_nodes});
  const std::span<std::byte> from = memory.bytes().first(kHalf);
  const std::span<std::byte> to = memory.bytes().subspan(kHalf, kHalf);
  WorkerArena workers(options.threads, options.cpus);
  const auto rate = [&](int threads) {
    const std::size_t part = kHalf / static_cast<std::size_t>(threads);
    double least_s = std::numeric_limits<double>::infinity();
    for (int tries = 0; tries < 4; ++tries) {
      least_s = std::min(least_s, seconds_of([&] {
                           workers.parallel_for(threads, [&](std::int64_t index, int) {
                             const std::size_t begin = static_cast<std::size_t>(index) * part;
                             streaming_copy(to.subspan(begin, part), from.subspan(begin, part));
                           });
                         }));
    }
    return static_cast<double>(static_cast<std::size_t>(threads) * part) / least_s;
  };
  profile.upload_bytes_per_s = profile.download_bytes_per_s = rate(1);
  profile.copy_cores = 1;
  profile.memory_bytes_per_s = 2 * rate(options.threads);  // each byte is read and written
}

}  // namespace terrace
