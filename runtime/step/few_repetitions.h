#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/step/unrolled_program.h"

// The simulator runs a few repetitions of a program's repeated ops and assumes that all further
// ones are like the last of these.
namespace terrace {

// A program of which a few repetitions are listed.
class FewRepetitions {
 public:
  // Borrows the program.
  explicit FewRepetitions(const Program& program);

  const Program& program() const { return few_.program(); }
  // Returns how many repetitions are left out.
  std::int32_t left_out() const { return left_out_; }
  // Return the first compute op of the last repetition that is listed, and the first one behind
  // that repetition; -1 if none is left out.
  OpId first_of_last() const { return first_of_last_; }
  OpId first_behind() const { return first_behind_; }

 private:
  OpId first_compute(OpId from) const;

  UnrolledProgram few_;
  std::int32_t left_out_ = 0;
  OpId first_of_last_ = -1;
  OpId first_behind_ = -1;
};

// The time of the repetitions that are left out, in a simulation of several runs.
class LeftOutTime {
 public:
  using LaneSeconds = std::array<double, kLaneCount>;

  LeftOutTime(const FewRepetitions& few, std::int32_t runs)
      : few_(few), seconds_(static_cast<std::size_t>(runs), 0) {}

  // Returns whether the start of this op must be told.
  bool asks_about(OpId op) const { return op == few_.first_of_last() || op == few_.first_behind(); }
  // Called when such an op starts. `busy_s`: how long each lane has been busy so far.
  void compute_starts(OpId op, std::int32_t run, double now_s, const LaneSeconds& busy_s);

  // Returns the time that the left-out repetitions take in the runs [first, last).
  double seconds(std::int32_t first, std::int32_t last) const;
  // Returns how long they keep the lane with this number busy, in all runs.
  double busy_s(std::size_t lane) const { return busy_s_.at(lane); }

 private:
  const FewRepetitions& few_;
  std::vector<double> seconds_;  // by run
  LaneSeconds busy_s_{};
  // When the last listed repetition began, and how long each lane had been busy then.
  double begin_s_ = 0;
  LaneSeconds busy_before_s_{};
};

}  // namespace terrace
