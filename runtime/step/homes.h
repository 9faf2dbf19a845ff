#pragma once

#include <vector>

#include "runtime/step/draft.h"
#include "runtime/step/step_model.h"
#include "runtime/step/step_policy.h"

namespace terrace {

// How programs tell the homes of a state from others.
struct HomeNames {
  const char* buffer = "";  // for people
  BufferKind kind = BufferKind::kOther;
  Role role = Role::kSource;  // to an update
};
const HomeNames& home_names(StateClass state);

// Where the state of one class of every unit lives between uses: parameters, gradients or what
// updates keep. A home in memory is one buffer per unit, a home on NVMe one extent per chunk.
class Homes {
 public:
  // Adds the buffers. Borrows the model.
  Homes(Draft& draft, const StepModel& model, const StepPolicy& policy, StateClass state);

  StateClass state() const { return state_; }
  Tier tier(std::int32_t unit) const { return tiers_.at(unit); }
  // What is at home here of a chunk, and of the unit; the latter only of a home in memory.
  Range chunk(std::int32_t unit, std::int64_t chunk) const;
  Range unit(std::int32_t unit) const;
  // Whether only this rank's shards are at home here.
  bool is_sharded(std::int32_t unit) const { return is_sharded_.at(unit); }
  // Bytes of them; of a unit: its chunks one behind the other.
  std::size_t chunk_bytes(std::int32_t unit, std::int64_t chunk) const;
  std::size_t unit_bytes(std::int32_t unit) const;

 private:
  void add_unit(Draft& draft, const Buffer& home, std::int32_t unit);

  const StepModel& model_;
  StateClass state_;
  std::vector<Tier> tiers_;
  std::vector<bool> is_sharded_;
  std::vector<std::vector<BufferId>> buffers_;  // per unit: one, or one per chunk
  // Per unit: where each chunk begins in a home in memory, and behind the last the home's end.
  std::vector<std::vector<std::size_t>> begins_;
};

// The buffers that do not belong to a unit.
struct SharedBuffers {
  BufferId tokens = kNoBuffer;     // none where a step has no input
  BufferId constants = kNoBuffer;  // none without a rotary table
  BufferId workspace = kNoBuffer;
  BufferId losses = kNoBuffer;       // in the compute tier, an fp64 per micro-batch
  BufferId losses_host = kNoBuffer;  // the same buffer in unified mode
  // On the host, an fp64 per block of 4Ki elements that train; none where no unit of a stage does.
  BufferId partials = kNoBuffer;
  BufferId partials_device = kNoBuffer;  // only where gradients live on the device
  // With several ranks: per rank its norm partials (where they differ), then its losses.
  BufferId sums = kNoBuffer;
  BufferId scalars = kNoBuffer;         // StepScalars on the host
  BufferId scalars_device = kNoBuffer;  // only where updates run on the device
  BufferId loss_scale = kNoBuffer;      // LossScaleState on the host, where losses are scaled
};

// What a rank contributes to the sums: its norm partials, where every rank has its own, and its
// losses.
std::size_t sums_bytes_of_rank(const StepModel& model, std::int32_t micro_batches);

SharedBuffers add_shared_buffers(Draft& draft, const StepModel& model, const StepPolicy& policy);

}  // namespace terrace
