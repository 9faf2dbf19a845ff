#pragma once

#include <functional>
#include <vector>

#include "runtime/step/draft.h"
#include "runtime/step/step_model.h"
#include "runtime/step/step_policy.h"

namespace terrace {

// Where one kind of state of every unit lives between uses. A home in memory is one buffer per
// unit, a home on NVMe one extent per chunk.
class Homes {
 public:
  // `has` says whether a unit's state is at home here at all, `chunks` how many of its chunks have
  // such a state, `part_of` which elements of a chunk
  // are at home here, `bytes_of` how large the state of so many elements is; `name` is for people.
  struct What {
    const char* name = "";
    BufferKind kind = BufferKind::kOther;
    Account account = Account::kParameters;
    std::function<bool(std::int32_t unit)> has;
    std::function<std::int64_t(std::int32_t unit)> chunks;
    std::function<Life(std::int32_t unit)> life_of;  // of a home in memory
    std::function<ChunkPart(std::int32_t unit, std::int64_t chunk)> part_of;
    std::function<std::size_t(std::int64_t elements)> bytes_of;
  };

  Homes(Draft& draft, const StepModel& model, const What& what, const std::vector<Tier>& tiers);

  Tier tier(std::int32_t unit) const { return tiers_.at(unit); }
  // What is at home here of a chunk, and of the unit; the latter only of a home in memory.
  Range chunk(std::int32_t unit, std::int64_t chunk) const;
  Range unit(std::int32_t unit) const;
  // Whether only this rank's shards are at home here.
  bool is_sharded(std::int32_t unit) const;
  // Bytes of them; of a unit: its chunks one behind the other.
  std::size_t chunk_bytes(std::int32_t unit, std::int64_t chunk) const;
  std::size_t unit_bytes(std::int32_t unit) const;

 private:
  const StepModel& model_;
  What what_;
  std::vector<Tier> tiers_;
  std::vector<std::vector<BufferId>> buffers_;  // per unit: one, or one per chunk
  // Per unit: where each chunk begins in a home in memory, and behind the last the home's end.
  std::vector<std::vector<std::size_t>> begins_;
};

// The homes that a policy gives to each state of a model.
Homes parameter_homes(Draft& draft, const StepModel& model, const StepPolicy& policy);
Homes gradient_homes(Draft& draft, const StepModel& model, const StepPolicy& policy);
Homes optimizer_homes(Draft& draft, const StepModel& model, const StepPolicy& policy);

// The buffers that do not belong to a unit.
struct SharedBuffers {
  BufferId tokens = kNoBuffer;
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
