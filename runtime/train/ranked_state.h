#pragma once

#include <span>
#include <vector>

#include "parallel/communicator.h"
#include "runtime/engine/training_state.h"

namespace terrace {

// The training state of all ranks as the first rank reads it, in the order of the whole model, for
// checkpoints and export. The first rank calls read() as often as it likes and then end_reads();
// meanwhile the other ranks are in serve_reads(). Used between steps, when the engine is drained;
// with one rank also beside steps, for units whose HomeGate is closed. Throws as
// TrainingState::read, and CommError.
class RankedState {
 public:
  // `ranks`: null where there is one rank. Borrows everything.
  RankedState(TrainingState& state, const StepModel& model, Communicator* ranks)
      : state_(state), model_(model), ranks_(ranks) {}

  // Reads elements [begin, begin + out.size()) of a unit's flat sequence in
  // parameter_layout(config).
  void read(StateField field, std::int32_t unit, std::int64_t begin, std::span<float> out);
  void end_reads();
  void serve_reads();

 private:
  struct Request {
    std::int32_t field = 0;
    std::int32_t unit = 0;
    std::int64_t begin = 0;
    std::int64_t count = 0;  // 0: no more
  };

  void share(Request& request);
  // The part of a request that one rank has at home.
  struct Part {
    int rank = 0;
    std::int64_t begin = 0;  // of the rank's unit
    std::int64_t count = 0;
    const ParameterTensor* tensor = nullptr;
    std::int32_t tensor_rank = 0;
  };
  // Calls visit(part) for the ranks' parts of the request, in one order on all ranks.
  template <typename Visit>
  void for_each_part(const Request& request, Visit visit) const;
  // Calls visit() for the pieces of `part`, whose count covers all data-parallel ranks, cut at the
  // ends of their shards.
  template <typename Visit>
  void for_each_shard(const Request& request, Part part, Visit visit) const;
  // Copies the elements that a rank has sent to their places in the request.
  void scatter(const Part& part, const Request& request, std::span<float> out) const;

  TrainingState& state_;
  const StepModel& model_;
  Communicator* ranks_;
  std::vector<float> piece_;  // a part on its way
};

}  // namespace terrace
