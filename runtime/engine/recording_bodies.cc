#include "runtime/engine/recording_bodies.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/hash.h"

namespace terrace {
namespace {

// A value is hashed in blocks, by several threads, and its hash is the hash of theirs.
constexpr std::size_t kHashBlock = std::size_t{1} << 20;

std::size_t blocks_of(std::size_t bytes) { return (bytes + kHashBlock - 1) / kHashBlock; }

// Returns the hash of the lower 16 bits of fp32 numbers: of the same bytes as 16-bit numbers.
std::uint64_t hash_low_halves(std::span<const std::byte> floats) {
  std::array<std::uint16_t, 2048> halves{};
  StreamingHash hash;
  while (!floats.empty()) {
    const std::size_t count = std::min(halves.size(), floats.size() / sizeof(std::uint32_t));
    for (std::size_t i = 0; i < count; ++i) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, floats.data() + i * sizeof(bits), sizeof(bits));
      halves[i] = static_cast<std::uint16_t>(bits);
    }
    hash.add(std::as_bytes(std::span(halves).first(count)));
    floats = floats.subspan(count * sizeof(std::uint32_t));
  }
  return hash.value();
}

// Returns how many bytes of memory there are for each byte that is hashed.
std::size_t widening(HashProbe::Form form) {
  return form == HashProbe::Form::kLowHalves ? sizeof(std::uint32_t) / sizeof(std::uint16_t) : 1;
}

}  // namespace

RecordingBodies::RecordingBodies(const Parts& parts, const HashedTraining& training)
    : parts_(parts), program_(training.bytes.program), probes_(training) {
  for (auto& hashes : hashes_) hashes.assign(probes_.table().keys.size(), kNoHash);
  for (std::size_t op = 0; op < program_.ops.size(); ++op) {
    auto& blocks = blocks_.at(static_cast<std::size_t>(program_.ops[op].lane));
    for (const auto* probes : {&probes_.of(op).before, &probes_.of(op).after}) {
      for (const HashProbe& probe : *probes) {
        blocks.resize(std::max(blocks.size(), blocks_of(probe.bytes.size())));
      }
    }
  }
  parts_.sink.describe(probes_.table());
}

RecordingBodies::~RecordingBodies() {
  try {
    drain();
  } catch (...) {
    next_ = last_ + 1;  // gives the rest up: the run has ended, and its error is known
  }
}

void RecordingBodies::begin(std::int64_t step, std::span<const std::byte> input) {
  if (next_ > last_) next_ = step;
  last_ = step;
  std::vector<std::uint64_t>& hashes = hashes_of(step);
  std::ranges::fill(hashes, kNoHash);
  const std::size_t bytes = probes_.table().model.tokens_bytes;
  for (std::size_t m = 0; m * bytes < input.size(); ++m) {
    hashes.at(m) = hash_bytes(input.subspan(m * bytes, bytes));
  }
}

void RecordingBodies::write_before(std::int64_t step) {
  for (; next_ < step && next_ <= last_; ++next_) parts_.sink.add(next_, hashes_of(next_));
}

void RecordingBodies::run(const Op& op, const RunInput& input, NativeStream stream) {
  const OpProbes& probes = probes_.of(static_cast<std::size_t>(&op - program_.ops.data()));
  // In a drain, which has no result, deferred ops belong to the step that it has.
  const bool is_of_step_before = op.is_deferred() && input.result != nullptr;
  std::vector<std::uint64_t>& hashes = hashes_of(input.step - (is_of_step_before ? 1 : 0));
  for (const HashProbe& probe : probes.before) {
    if (is_of_run(probe, input)) hashes[probe.key] = hash_of(probe, op, input);
  }
  parts_.bodies.run(op, input, stream);
  for (const HashProbe& probe : probes.after) hashes[probe.key] = hash_of(probe, op, input);
}

// The backward of an embedding is one op for all micro-batches of the program. The gradients that
// it gets for micro-batches that the run does not have are not written.
bool RecordingBodies::is_of_run(const HashProbe& probe, const RunInput& input) const {
  const HashKey& key = probes_.table().keys.at(probe.key);
  const bool is_of_one = key.micro_batch < 0 && key.value == HashProbes::kHiddenGradients;
  return !is_of_one || key.number < input.micro_batches;
}

std::uint64_t RecordingBodies::hash_of(const HashProbe& probe, const Op& op,
                                       const RunInput& input) {
  const auto of_number = [](double number) {
    return std::max<std::uint64_t>(1, std::bit_cast<std::uint64_t>(number));
  };
  if (probe.form == HashProbe::Form::kLoss) return of_number(input.result->loss);
  if (probe.form == HashProbe::Form::kNorm) return of_number(input.result->gradient_norm);
  const std::size_t block_bytes = kHashBlock * widening(probe.form);
  const std::size_t count =
      std::max<std::size_t>(1, (probe.bytes.size() + block_bytes - 1) / block_bytes);
  const auto hash_block = [&](std::size_t block) {
    const std::span<const std::byte> bytes = probe.bytes.subspan(
        block * block_bytes, std::min(block_bytes, probe.bytes.size() - block * block_bytes));
    return probe.form == HashProbe::Form::kBytes ? hash_bytes(bytes) : hash_low_halves(bytes);
  };
  if (count == 1) return std::max<std::uint64_t>(1, hash_block(0));
  const std::span<std::uint64_t> blocks =
      std::span(blocks_.at(static_cast<std::size_t>(op.lane))).first(count);
  if (op.lane == Lane::kCompute || op.lane == Lane::kUpdate) {
    WorkerArena& workers =
        op.lane == Lane::kCompute ? parts_.compute_workers : parts_.update_workers;
    workers.parallel_for(static_cast<std::int64_t>(count), [&](std::int64_t block, int) {
      blocks[static_cast<std::size_t>(block)] = hash_block(static_cast<std::size_t>(block));
    });
  } else {
    for (std::size_t block = 0; block < count; ++block) blocks[block] = hash_block(block);
  }
  return std::max<std::uint64_t>(1, hash_bytes(std::as_bytes(blocks)));
}

}  // namespace terrace
