#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "parallel/communicator.h"
#include "runtime/engine/training_state.h"

namespace terrace {

// The training state of all ranks as the first rank reads it, in the order of the whole model, for
// checkpoints and export. The first rank calls read() and read_errors() as often as it likes, and
// then end_reads(); meanwhile the other ranks are in serve_reads(). Used between steps, when the
// engine is drained; with one rank also beside steps, for units whose HomeGate is closed. Throws as
// TrainingState::read, and CommError.
class RankedState {
 public:
  // `ranks`: null where there is one rank. Borrows everything.
  RankedState(TrainingState& state, const StepModel& model, Communicator* ranks)
      : state_(state), model_(model), ranks_(ranks) {}

  const StepModel& model() const { return model_; }
  // Reads elements [begin, begin + out.size()) of a unit's flat sequence in
  // parameter_layout(config).
  void read(StateField field, std::int32_t unit, std::int64_t begin, std::span<float> out);
  // Reads bytes [begin, begin + out.size()) of a rank's errors of coded gradients, which lie one
  // behind the other as UnitState says.
  void read_errors(std::int32_t rank, std::uint64_t begin, std::span<std::byte> out);
  void end_reads();
  void serve_reads();

 private:
  struct Request {
    std::int32_t field = 0;  // or kErrors
    std::int32_t unit = 0;   // or, for errors, the rank that has them
    std::int64_t begin = 0;
    std::int64_t count = 0;  // of elements, or of bytes of errors; 0: no more
  };
  static constexpr std::int32_t kErrors = -1;  // not a StateField

  void share(Request& request);
  // Sends the part of the request that this rank has to the first rank.
  void send_elements(const Request& request);
  void send_errors(const Request& request);
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
  std::vector<float> piece_;       // a part on its way
  std::vector<std::byte> errors_;  // of this rank, on their way
};

}  // namespace terrace
