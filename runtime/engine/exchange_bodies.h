#pragma once

#include <cstddef>
#include <span>

#include "runtime/engine/op_bytes.h"
#include "runtime/engine/step_ranks.h"
#include "runtime/step/step_model.h"

namespace terrace {

// The bodies of the ops that exchange bytes with other ranks. In each group of ranks the
// communicator is used that reaches the op's memory. Used by the lanes between ranks.
class ExchangeBodies {
 public:
  // Borrows all but the ranks.
  ExchangeBodies(const OpBytes& bytes, const StepModel& model, const StepRanks& ranks)
      : bytes_(bytes), model_(model), ranks_(ranks) {}

  void run(const Op& op, const RunInput& input, NativeStream stream) const;

 private:
  void collective(const Op& op, NativeStream stream) const;
  // Passes codes between data-parallel ranks, as bytes.
  void pass_codes(const Op& op, NativeStream stream) const;
  void island_gather(const Op& op, NativeStream stream) const;
  void tensor_collective(const Op& op, NativeStream stream) const;
  void pass_between_stages(const Op& op, NativeStream stream) const;
  void gather_sums(const Op& op, const RunInput& input, NativeStream stream) const;
  void fold_routers(const Op& op, std::span<std::byte> own) const;
  void fold_noise(const Op& op, const RunInput& input, std::span<std::byte> own) const;
  Communicator& communicator_for(const StepGroup& group, const Access& access) const {
    return group.of(bytes_.program.buffers.at(access.buffer).tier);
  }

  const OpBytes bytes_;
  const StepModel& model_;
  const StepRanks ranks_;
};

}  // namespace terrace
