#include "runtime/train/op_times.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "memory/host/host_memory.h"
#include "memory/host/streaming_copy.h"
#include "runtime/model/experts_layer.h"
#include "runtime/step/homes.h"
#include "runtime/train/seconds_of.h"

namespace terrace {
namespace {

// Returns whether the op only computes: it waits for nobody and moves nothing.
bool is_timed(const Op& op) {
  if (op.lane != Lane::kCompute && op.lane != Lane::kUpdate) return false;
  switch (op.kind) {
    case OpKind::kForward:
    case OpKind::kRecompute:
    case OpKind::kBackward:
    case OpKind::kAccumulate:
    case OpKind::kRoundGradient:
    case OpKind::kNormPartials:
    case OpKind::kUpdate:
      return true;
    default:
      return false;
  }
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
  std::size_t at = 0;
};

// Returns the buffers that an op touches, side by side.
std::map<BufferId, TouchedBytes> touched_by(const Op& op) {
  std::map<BufferId, TouchedBytes> touched;
  for (const auto* accesses : {&op.reads, &op.writes}) {
    for (const Access& access : *accesses) {
      const std::size_t end = access.offset + access.size_bytes;
      const auto [known, is_new] =
          touched.try_emplace(access.buffer, TouchedBytes{access.offset, end});
      known->second.begin = std::min(known->second.begin, access.offset);
      known->second.end = std::max(known->second.end, end);
    }
  }
  std::size_t at = 0;
  for (auto& [buffer, bytes] : touched) {
    bytes.at = at;
    at = round_up(at + bytes.end - bytes.begin, 4096);
  }
  return touched;
}

std::size_t bytes_of(const std::map<BufferId, TouchedBytes>& touched) {
  if (touched.empty()) return 0;
  const TouchedBytes& last = touched.rbegin()->second;
  return last.at + last.end - last.begin;
}

std::size_t bytes_for(const std::vector<OpOfClass>& ops) {
  std::size_t largest = 1;
  for (const auto& [op_class, op] : ops) largest = std::max(largest, bytes_of(touched_by(*op)));
  return largest;
}

// The first run of an op also loads its kernels. So it only counts where the op takes longer than
// this.
constexpr double kLongS = 0.5;
// Shorter ops are run again once, or a few times up to this time; the fastest counts.
constexpr double kEnoughS = 0.02;

class OpTimer {
 public:
  OpTimer(const ModelRuntimeOptions& options, const TierPlan& plan, std::size_t arena_bytes)
      : options_(options),
        model_(plan.model),
        program_(plan.training.program),
        memory_(arena_bytes, {.numa_nodes = options.numa_nodes}),
        executor_memory_{.device = {}, .host = memory_.bytes(), .extents = {}},
        workers_(options.threads, options.cpus),
        update_workers_(options.update_threads, options.cpus),
        compute_(unit_compute_of(options)),
        bodies_(program_, executor_memory_, nullptr,
                {plan.model, compute_, options.optimizer, cpu_lane_kernels(), workers_,
                 update_workers_},
                options.ranks) {
    input_.target_tokens = options.batch.rows() * program_.micro_batches;
    input_.learning_rate = 1e-5;
  }

  // Returns the seconds of an op.
  double seconds(const Op& op) {
    place(op);
    const auto run = [&] { bodies_.run(op, input_, NativeStream{}); };
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
  // Puts what the op touches into the arena, and fills it.
  void place(const Op& op) {
    const std::map<BufferId, TouchedBytes> touched = touched_by(op);
    for (const auto& [id, bytes] : touched) {
      Buffer& buffer = program_.buffers.at(id);
      buffer.tier = Tier::kHost;
      buffer.offset = bytes.at - bytes.begin;  // so that the first byte that is touched is at `at`
    }
    // These bytes are small positive numbers in every type.
    std::memset(memory_.bytes().data(), 0x3c, bytes_of(touched));
    fill_tokens(op);
    fill_scalars(op);
    fill_routes(op);
  }

  // A part of a layer of experts reads which rows each expert has.
  void fill_routes(const Op& op) {
    for (const Access& read : op.reads) {
      if (read.role != Role::kBetween) continue;
      const std::span<std::byte> target = terrace::bytes_of(program_, executor_memory_, read);
      const BetweenBuffer& buffer = model_.units.at(static_cast<std::size_t>(op.unit))
                                        .between.at(static_cast<std::size_t>(read.number));
      fill_route(
          options_.model.experts, options_.batch.rows(), buffer.name,
          {reinterpret_cast<std::int32_t*>(target.data()), target.size() / sizeof(std::int32_t)});
    }
  }

  // An update reads its scalars, one set for each rule.
  void fill_scalars(const Op& op) {
    const Access* access = op.find(Role::kScalars);
    if (access == nullptr) return;
    const std::span<std::byte> target = terrace::bytes_of(program_, executor_memory_, *access);
    StepScalars scalars;
    scalars.learning_rate = 1e-5F;
    scalars.step = 1;
    for (std::size_t at = 0; at + sizeof scalars <= target.size(); at += kScalarBytes) {
      std::memcpy(target.data() + at, &scalars, sizeof scalars);
    }
  }

  void fill_tokens(const Op& op) {
    const Access* access = op.find(Role::kTokens);
    if (access == nullptr) return;
    const std::span<std::byte> target = terrace::bytes_of(program_, executor_memory_, *access);
    const std::size_t one = compute_.tokens_bytes();
    for (std::size_t at = 0; at + one <= target.size(); at += one) {
      const std::vector<std::int32_t> numbers = numbers_of_micro_batch();
      std::memcpy(target.data() + at, numbers.data(), numbers.size() * sizeof(std::int32_t));
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
  const ExecutorMemory executor_memory_;
  WorkerArena workers_;
  WorkerArena update_workers_;
  UnitCompute compute_;
  StepBodies bodies_;
  RunInput input_;
};

}  // namespace

bool measure_ops(const OpMeasurement& measurement, MachineProfile& profile) {
  const auto begin = std::chrono::steady_clock::now();
  const Program& program = measurement.plan.training.program;
  std::vector<OpOfClass> ops = one_of_each_class(program, profile);
  bool has_all = std::erase_if(ops, [&](const OpOfClass& one) {
                   return bytes_of(touched_by(*one.second)) > measurement.bytes_most;
                 }) == 0;
  OpTimer timer(measurement.options, measurement.plan, bytes_for(ops));
  for (const auto& [op_class, op] : ops) {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    const double expected_s = op->cost.flops / profile.flops_per_s;
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
