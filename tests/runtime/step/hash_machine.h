#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <latch>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "memory/cpu/cpu_device.h"
#include "offload/nvme_store.h"
#include "runtime/step/lane_executor.h"
#include "tests/offload/store_fixture.h"
#include "tests/runtime/step/group_owners.h"
#include "tests/runtime/step/step_fixture.h"

// Programs run on real lanes with bodies that know nothing of training: an op writes a hash of the
// bytes that it read. An op that reads too early or too late, or a byte that is moved wrongly,
// changes everything that comes after. The same program on one thread, with a place of its own for
// every buffer, gives the right result.
namespace terrace {

using Bytes = std::vector<std::byte>;

inline std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15U;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31);
}

inline void fill(std::span<std::byte> bytes, std::uint64_t seed) {
  std::size_t at = 0;
  for (; at + sizeof(seed) <= bytes.size(); at += sizeof(seed)) {
    seed = mix(seed);
    std::memcpy(bytes.data() + at, &seed, sizeof(seed));
  }
  for (; at < bytes.size(); ++at) bytes[at] = static_cast<std::byte>(mix(seed + at));
}

template <typename BytesOf>
void hash_body(const Op& op, const RunInput& input, BytesOf bytes_of) {
  StreamingHash hash;
  const std::array<std::int64_t, 5> label = {static_cast<std::int64_t>(op.kind), op.unit,
                                             op.micro_batch, op.chunk, input.step};
  hash.add(std::as_bytes(std::span(label)));
  for (const Access& access : op.reads) hash.add(bytes_of(access));
  const std::uint64_t digest = hash.value();
  for (std::size_t w = 0; w < op.writes.size(); ++w) fill(bytes_of(op.writes[w]), digest + w);
  if (op.kind == OpKind::kNormFinish && input.result != nullptr) {
    input.result->loss = static_cast<double>(digest >> 11);
  }
}

inline std::uint64_t first_content(BufferId buffer) {
  return mix(static_cast<std::uint64_t>(buffer));
}

class Oracle {
 public:
  explicit Oracle(const Program& program) : program_(program) {
    for (BufferId b = 0; b < static_cast<BufferId>(program.buffers.size()); ++b) {
      buffers_.emplace_back(program.buffers[b].size_bytes);
      if (program.buffers[b].life == Life::kPersistent) fill(buffers_[b], first_content(b));
    }
  }

  void run(Part part, const RunInput& input) {
    for (const Op& op : program_.ops) {
      if (!op.parts.contains(part)) continue;
      if (op.kind == OpKind::kInput) {
        std::copy(input.tokens.begin(), input.tokens.end(), bytes_of(op.writes.front()).begin());
      } else if (moves(op)) {
        const auto source = bytes_of(op.reads.front());
        std::copy(source.begin(), source.end(), bytes_of(op.writes.front()).begin());
      } else {
        hash_body(op, input, [this](const Access& access) { return bytes_of(access); });
      }
    }
  }

  const Bytes& buffer(BufferId buffer) const { return buffers_.at(buffer); }

 private:
  static bool moves(const Op& op) {
    return op.kind == OpKind::kUpload || op.kind == OpKind::kDownload || op.kind == OpKind::kRead ||
           op.kind == OpKind::kWrite;
  }

  std::span<std::byte> bytes_of(const Access& access) {
    return std::span(buffers_.at(access.buffer)).subspan(access.offset, access.size_bytes);
  }

  const Program& program_;
  std::vector<Bytes> buffers_;
};

class HashBodies final : public OpBodies {
 public:
  HashBodies(const Program& program, const ExecutorMemory& memory, std::uint64_t seed)
      : program_(program), memory_(memory), seed_(seed) {}

  void run(const Op& op, const RunInput& input, NativeStream /*stream*/) override {
    std::atomic<bool>& lane_busy = lane_busy_.at(static_cast<std::size_t>(op.lane));
    if (lane_busy.exchange(true)) overlaps_.fetch_add(1);
    calls_.fetch_add(1);
    if (is_between_ranks(op.lane)) calls_of_ranks_.fetch_add(1);
    if (input.step >= watched_step_) late_calls_.fetch_add(op.kind == OpKind::kUpdate ? 1 : 0);
    if (op.kind == failing_kind_ && input.step == failing_step_) {
      lane_busy.store(false);
      throw std::runtime_error("this body fails");
    }
    dawdle(mix(seed_ + static_cast<std::uint64_t>(&op - program_.ops.data()) * 131U +
               static_cast<std::uint64_t>(input.step)));
    hash_body(op, input,
              [this](const Access& access) { return bytes_of(program_, memory_, access); });
    lane_busy.store(false);
  }

  bool failed(const std::exception_ptr& /*error*/) noexcept override {
    has_failed_.count_down();
    return ranks_go_on_;
  }

  void fail_at(OpKind kind, std::int64_t step) {
    failing_kind_ = kind;
    failing_step_ = step;
  }
  // Lets ops between ranks go on after a failure.
  void let_ranks_go_on() { ranks_go_on_ = true; }
  void wait_for_failure() { has_failed_.wait(); }
  // Counts updates from this step on.
  void watch_updates_from(std::int64_t step) { watched_step_ = step; }

  int overlaps() const { return overlaps_.load(); }  // bodies of one lane at the same time
  int calls() const { return calls_.load(); }
  int calls_of_ranks() const { return calls_of_ranks_.load(); }
  int late_updates() const { return late_calls_.load(); }

 private:
  static void dawdle(std::uint64_t dice) {
    if (dice % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(dice % 300));
    if (dice % 8 < 3) std::this_thread::yield();
  }

  const Program& program_;
  const ExecutorMemory& memory_;
  std::uint64_t seed_;
  // These are set before the first run.
  bool ranks_go_on_ = false;
  OpKind failing_kind_ = OpKind::kInput;
  std::int64_t failing_step_ = -1;
  std::int64_t watched_step_ = std::numeric_limits<std::int64_t>::max();

  std::array<std::atomic<bool>, kLaneCount> lane_busy_{};
  std::atomic<int> overlaps_{0};
  std::atomic<int> calls_{0};
  std::atomic<int> calls_of_ranks_{0};
  std::atomic<int> late_calls_{0};
  std::latch has_failed_{1};
};

// A program with everything it needs to run.
class Machine {
 public:
  Machine(const Program& program, std::unique_ptr<BlockStore> store, std::uint64_t seed)
      : program_(program),
        store_(std::move(store)),
        device_(make_cpu_device(std::max(bytes_of_tier(Tier::kDevice), kSmallest))),
        host_(std::max(bytes_of_tier(Tier::kHost), kSmallest), 4096) {
    host_.fill(~seed);
    memory_.host = host_.span();
    if (const std::size_t bytes = bytes_of_tier(Tier::kDevice); bytes != 0) {
      device_memory_ = device_->allocate(bytes);
      memory_.device = device_memory_->bytes();
      fill(memory_.device, ~seed);
    }
    for (const std::size_t size : extent_sizes(program)) {
      memory_.extents.push_back(store_->create_extent(size));
    }
    store_->prepare();
    bodies_ = std::make_unique<HashBodies>(program_, memory_, seed);
  }

  // Makes device memory unreachable for the host, as a GPU's is: collectives over it then run on
  // streams.
  void hide_device_memory() { memory_.host_reaches_device = false; }

  void fill_persistent() {
    for (BufferId b = 0; b < static_cast<BufferId>(program_.buffers.size()); ++b) {
      if (program_.buffers[b].life != Life::kPersistent) continue;
      if (program_.buffers[b].tier == Tier::kNvme) {
        AlignedMemory bytes(program_.buffers[b].size_bytes, 4096);
        fill(bytes.span(), first_content(b));
        carry(b, bytes, IoRequest::Direction::kWrite);
      } else {
        fill(memory_of(b), first_content(b));
      }
    }
  }

  Bytes content(BufferId b) {
    if (program_.buffers[b].tier != Tier::kNvme) {
      const std::span<std::byte> bytes = memory_of(b);
      return {bytes.begin(), bytes.end()};
    }
    AlignedMemory bytes(program_.buffers[b].size_bytes, 4096);
    carry(b, bytes, IoRequest::Direction::kRead);
    return {bytes.span().begin(), bytes.span().end()};
  }

  std::unique_ptr<LaneExecutor> make_executor() {
    return std::make_unique<LaneExecutor>(
        program_, memory_, LaneServices{*device_, store_.get(), *bodies_, clock_, &gate_});
  }
  HomeGate& gate() { return gate_; }

  HashBodies& bodies() { return *bodies_; }

 private:
  static constexpr std::size_t kSmallest = 4096;

  std::size_t bytes_of_tier(Tier tier) const { return program_.use_of(tier).packed_bytes; }

  std::span<std::byte> memory_of(BufferId b) {
    return bytes_of(program_, memory_, {Role::kSource, b, 0, program_.buffers[b].size_bytes});
  }

  void carry(BufferId b, AlignedMemory& bytes, IoRequest::Direction direction) {
    Waiter waiter;
    IoRequest request;
    request.direction = direction;
    request.extent = memory_.extents.at(program_.buffers[b].offset);
    request.memory = bytes.span();
    request.completion = &waiter;
    store_->submit(request);
    EXPECT_NO_THROW(waiter.wait().throw_if_failed());
  }

  const Program& program_;
  std::unique_ptr<BlockStore> store_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<DeviceMemory> device_memory_;
  AlignedMemory host_;
  ExecutorMemory memory_;
  SystemClock clock_;
  std::unique_ptr<HashBodies> bodies_;
  HomeGate gate_{each_unit_one_group(program_.groups)};
};

// Returns small_step_model with every size shrunk, as bytes are hashed again and again here.
inline StepModel tiny_step_model(std::int64_t blocks, bool tied) {
  StepModel model = small_step_model(blocks, tied);
  model.chunk_elements = 2 * kBlockElements;
  model.hidden_bytes = 4 * kKiB;
  model.workspace_bytes = 4 * kKiB;
  for (ParameterGroup& group : model.groups) group.padded_elements = 3 * kBlockElements;
  model.groups.back().padded_elements = kBlockElements;
  for (UnitModel& unit : model.units) {
    if (unit.saved_bytes != 0) unit.saved_bytes = 12 * kKiB;
  }
  return model;
}

// Puts all states on NVMe that may be there, so that reads and writes are everywhere.
inline Program nvme_program() {
  const StepModel model = tiny_step_model(3, true);
  const StepPolicy policy =
      uniform_policy(model, {Tier::kNvme, Tier::kNvme, Tier::kNvme, Tier::kNvme, false});
  return compile_step(model, policy, {});
}

inline Program host_program() {
  const StepModel model = tiny_step_model(3, false);
  const StepPolicy policy =
      uniform_policy(model, {Tier::kHost, Tier::kHost, Tier::kHost, Tier::kHost, true});
  return compile_step(model, policy, {});
}

// The inputs of a number of runs. They stay where they are in memory.
class Inputs {
 public:
  explicit Inputs(const Program& program, std::size_t runs) : tokens_(runs), results_(runs) {
    for (const Op& op : program.ops) {
      if (op.kind == OpKind::kInput) size_bytes_ = op.writes.front().size_bytes;
    }
    for (std::size_t r = 0; r < runs; ++r) {
      tokens_[r].resize(size_bytes_);
      fill(tokens_[r], 77 + r);
    }
  }

  RunInput at(std::size_t run, std::int64_t step) {
    RunInput input;
    input.step = step;
    input.tokens = tokens_.at(run);
    input.result = &results_.at(run);
    return input;
  }
  double loss(std::size_t run) const { return results_.at(run).loss; }

 private:
  std::size_t size_bytes_ = 0;
  std::vector<Bytes> tokens_;
  std::vector<StepResult> results_;
};

// A prologue, two bodies and a drain; then the same with one body, as a run does around an
// evaluation.
inline constexpr std::array<Part, 7> kParts = {Part::kPrologue, Part::kBody,     Part::kBody,
                                               Part::kDrain,    Part::kPrologue, Part::kBody,
                                               Part::kDrain};

inline std::int64_t step_of(std::size_t run) {
  std::int64_t step = 0;
  for (std::size_t r = 0; r <= run; ++r) step += kParts[r] == Part::kDrain ? 0 : 1;
  return step;
}

// At most two runs are in flight, and always two as long as there is a next one.
inline void run_all(LaneExecutor& executor, Inputs& inputs, std::vector<RunReport>& reports) {
  for (std::size_t r = 0; r < kParts.size(); ++r) {
    if (executor.runs_in_flight() == 2) reports.push_back(executor.retire());
    executor.start(kParts[r], inputs.at(r, step_of(r)));
  }
  while (executor.runs_in_flight() > 0) reports.push_back(executor.retire());
}

// Expects times in the report for the ops that took part, and no op to start before the ops that it
// waits for had ended.
inline void expect_times(const Program& program, const RunReport& report) {
  ASSERT_EQ(report.times.size(), program.ops.size());
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    const OpTime& time = report.times[i];
    if (!op.parts.contains(report.part)) {
      ASSERT_EQ(time.end_ns, 0) << describe(program, op);
      continue;
    }
    ASSERT_LE(time.start_ns, time.end_ns) << describe(program, op);
    for (const Dependency& edge : op.after) {
      if (edge.distance == 0) {
        ASSERT_GE(time.start_ns, report.times[edge.op].end_ns) << describe(program, op);
      }
    }
  }
}

}  // namespace terrace
