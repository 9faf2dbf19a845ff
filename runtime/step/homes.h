#pragma once

#include <vector>

#include "runtime/step/draft.h"
#include "runtime/step/step_model.h"
#include "runtime/step/step_policy.h"

namespace terrace {

// The name, the kind and the role that mark the homes of a state in a program.
struct HomeNames {
  const char* buffer = "";  // for people
  BufferKind kind = BufferKind::kOther;
  Role role = Role::kSource;  // in an update
};
const HomeNames& home_names(StateClass state);

// The homes of one class of state, for every group: where its parameters, its gradients or its
// optimizer state live between uses. A home in memory is one buffer per group; a home on NVMe is
// one extent per chunk.
class Homes {
 public:
  // Adds the buffers to the draft. Borrows the model.
  Homes(Draft& draft, const StepModel& model, const StepPolicy& policy, StateClass state);

  StateClass state() const { return state_; }
  Tier tier(std::int32_t group) const { return tiers_.at(group); }
  // Return the range that holds a chunk, or the whole group, as far as it is at home here. group()
  // is only for homes in memory.
  Range chunk(std::int32_t group, std::int64_t chunk) const;
  Range group(std::int32_t group) const;
  // Returns the number of parts of a chunk of which one is at home here.
  std::int32_t parts(std::int32_t group) const { return parts_.at(group); }
  // Returns whether only a part is at home here.
  bool is_sharded(std::int32_t group) const { return parts(group) > 1; }
  // Return the bytes of these ranges. A group's home has its chunks one behind the other.
  std::size_t chunk_bytes(std::int32_t group, std::int64_t chunk) const;
  std::size_t largest_chunk_bytes(std::int32_t group) const;
  std::size_t group_bytes(std::int32_t group) const;

 private:
  void add_group(Draft& draft, const Buffer& home, std::int32_t group);

  const StepModel& model_;
  StateClass state_;
  std::vector<Tier> tiers_;
  std::vector<std::int32_t> parts_;
  std::vector<std::vector<BufferId>> buffers_;  // per group: one buffer, or one per chunk
  // Per group: where each chunk begins in a home in memory, and behind the last chunk the home's
  // end.
  std::vector<std::vector<std::size_t>> begins_;
};

// The bytes between the scalars of one update rule and the next.
inline constexpr std::size_t kScalarBytes = 64;

// The buffers that do not belong to a group.
struct SharedBuffers {
  BufferId tokens = kNoBuffer;     // none if a step has no input
  BufferId constants = kNoBuffer;  // none without a rotary table
  BufferId workspace = kNoBuffer;
  BufferId losses = kNoBuffer;       // in the compute tier, one fp64 per micro-batch
  BufferId losses_host = kNoBuffer;  // the same buffer in unified mode
  // In the compute tier, for each micro-batch the sums of each of the stage's layers with experts,
  // and a copy on the host (the same buffer in unified mode); none without such layers, and where a
  // step has no backward.
  BufferId router_sums = kNoBuffer;
  BufferId router_sums_host = kNoBuffer;
  // On the host, one fp64 per block of 4Ki elements that train; none if no unit of the pipeline
  // stage trains.
  BufferId partials = kNoBuffer;
  BufferId partials_device = kNoBuffer;  // only where gradients live on the device
  // The same for the gradient of a small batch; only where StepModel::measures_noise.
  BufferId noise_partials = kNoBuffer;
  BufferId noise_partials_device = kNoBuffer;  // only where units compute on the device
  // With several ranks: for each rank its norm partials (where ranks differ in them), then the
  // folded sums of its routers, then its sums for the gradient noise scale, then its losses.
  BufferId sums = kNoBuffer;
  BufferId scalars = kNoBuffer;         // on the host: StepScalars of each update rule
  BufferId scalars_device = kNoBuffer;  // only where updates run on the device
  BufferId loss_scale = kNoBuffer;      // LossScaleState on the host, where losses are scaled
};

// Returns the bytes that a rank contributes to the sums: its norm partials, if every rank has its
// own, the folded sums of its routers (fold_router_sums()), its sums for the gradient noise scale
// (runtime/step/noise_sums.h), and its losses.
std::size_t sums_bytes_of_rank(const StepModel& model, std::int32_t micro_batches);
// Return the places of the three last in it.
std::size_t router_offset_in_sums(const StepModel& model);
std::size_t noise_offset_in_sums(const StepModel& model, std::int32_t micro_batches);
std::size_t loss_offset_in_sums(const StepModel& model, std::int32_t micro_batches);

SharedBuffers add_shared_buffers(Draft& draft, const StepModel& model, const StepPolicy& policy);

}  // namespace terrace
