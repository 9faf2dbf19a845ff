#pragma once

#include <span>
#include <vector>

#include "parallel/communicator.h"
#include "runtime/train/training_state.h"

namespace terrace {

// The training state of all ranks as the first rank reads it: for checkpoints and
// export. The first rank calls read() as it likes and then end_reads(); meanwhile the others are in
// serve_reads(). Between steps, when drained. Throws as TrainingState::read, and CommError.
class RankedState {
 public:
  // `ranks`: null where there is one. Borrows all.
  RankedState(TrainingState& state, const StepModel& model, Communicator* ranks)
      : state_(state), model_(model), ranks_(ranks) {}

  // Elements [begin, begin + out.size()) of a unit's flat sequence.
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

  // Whether the first rank has all.
  bool is_here() const;
  void share(Request& request);
  // Calls visit(rank, first element of the unit, elements) for the ranks' parts of the request, in
  // order.
  template <typename Visit>
  void for_each_part(const Request& request, Visit visit) const;

  TrainingState& state_;
  const StepModel& model_;
  Communicator* ranks_;
  std::vector<float> piece_;  // of what another rank asked for
};

}  // namespace terrace
