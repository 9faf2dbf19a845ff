#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/step/hazards.h"
#include "runtime/step/program.h"

namespace terrace {

// A program made by hand: buffers at chosen places, and ops that touch whole buffers.
class HandMadeProgram {
 public:
  // Makes a buffer, in host memory unless said otherwise.
  BufferId buffer(std::size_t offset, std::size_t size_bytes, Life life = Life::kTransient,
                  Tier tier = Tier::kHost) {
    Buffer buffer;
    buffer.name = "buffer " + std::to_string(program_.buffers.size());
    buffer.size_bytes = size_bytes;
    buffer.tier = tier;
    buffer.life = life;
    buffer.offset = offset;
    program_.buffers.push_back(buffer);
    TierUse& use = program_.use.at(static_cast<std::size_t>(tier));
    use.packed_bytes = std::max(use.packed_bytes, offset + size_bytes);
    return static_cast<BufferId>(program_.buffers.size()) - 1;
  }

  // Makes a buffer in a place of its own behind all others.
  BufferId own_buffer(Life life = Life::kTransient) {
    return buffer(program_.use_of(Tier::kHost).packed_bytes, kSize, life);
  }

  // Adds an op. `cost` is in flops on the compute lane and in bytes on all others.
  OpId op(Lane lane, double cost, const std::vector<BufferId>& reads,
          const std::vector<BufferId>& writes) {
    Op op;
    op.lane = lane;
    op.kind = lane == Lane::kCompute ? OpKind::kForward : OpKind::kUpdate;
    (lane == Lane::kCompute ? op.cost.flops : op.cost.bytes) = cost;
    for (const BufferId read : reads) op.reads.push_back(whole(Role::kHidden, read));
    for (const BufferId write : writes) op.writes.push_back(whole(Role::kHiddenOut, write));
    program_.ops.push_back(op);
    return static_cast<OpId>(program_.ops.size()) - 1;
  }

  OpId deferred(Lane lane, double cost, const std::vector<BufferId>& reads,
                const std::vector<BufferId>& writes) {
    const OpId id = op(lane, cost, reads, writes);
    program_.ops[id].parts = kOfStepBefore;
    return id;
  }

  // Returns the program with the edges that its places require.
  Program finish() const {
    Program program = program_;
    add_edges(program);
    return program;
  }

  static constexpr std::size_t kSize = 4096;

 private:
  Access whole(Role role, BufferId buffer) const {
    return {role, buffer, 0, program_.buffers.at(buffer).size_bytes};
  }

  Program program_;
};

}  // namespace terrace
