#pragma once

#include <vector>

#include "runtime/step/draft.h"
#include "runtime/step/step_model.h"
#include "runtime/step/step_policy.h"

namespace terrace {

// Where one kind of state of every unit lives between uses. A home in memory is one buffer per
// unit, a home on NVMe one extent per chunk.
class Homes {
 public:
  // Bytes per element of the state; `name` is for people.
  struct What {
    const char* name = "";
    Account account = Account::kParameters;
    Life life = Life::kPersistent;
    std::size_t bytes_per_element = 0;
  };

  Homes(Draft& draft, const StepModel& model, const What& what, const std::vector<Tier>& tiers);

  Tier tier(std::int32_t unit) const { return tiers_.at(unit); }
  Range chunk(std::int32_t unit, std::int64_t chunk) const;
  // The whole unit; only of a home in memory.
  Range unit(std::int32_t unit) const;
  // Bytes of elements of a chunk.
  std::size_t chunk_bytes(std::int32_t unit, std::int64_t chunk) const;

 private:
  const StepModel& model_;
  What what_;
  std::vector<Tier> tiers_;
  std::vector<std::vector<BufferId>> buffers_;  // per unit: one, or one per chunk
};

// The buffers that do not belong to a unit.
struct SharedBuffers {
  BufferId tokens = kNoBuffer;
  BufferId constants = kNoBuffer;  // none without a rotary table
  BufferId workspace = kNoBuffer;
  BufferId losses = kNoBuffer;           // in the compute tier, an fp64 per micro-batch
  BufferId losses_host = kNoBuffer;      // the same buffer in unified mode
  BufferId partials = kNoBuffer;         // on the host, an fp64 per block of 4Ki elements
  BufferId partials_device = kNoBuffer;  // only where gradients live on the device
  BufferId scalars = kNoBuffer;          // StepScalars on the host
  BufferId scalars_device = kNoBuffer;   // only where updates run on the device
};

SharedBuffers add_shared_buffers(Draft& draft, const StepModel& model, const StepPolicy& policy);

}  // namespace terrace
