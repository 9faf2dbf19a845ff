#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/config/train_options.h"
#include "runtime/train/first_steps.h"

// --checkpoint-every: after which steps a run saves its state, and goes on.
namespace terrace {

// The time between two automatic checkpoints.
inline constexpr double kSaveSeconds = 15 * 60;

// Returns how many steps of `step_s` seconds take about kSaveSeconds, at least 1, as a number of
// two significant digits.
std::int64_t steps_between_saves(double step_s);

// Returns the number of steps for --checkpoint-every auto once it can be chosen: when FirstSteps is
// full, or when the run has lasted kSaveSeconds and has done a step. `elapsed_s`: since its first
// step began.
std::optional<std::int64_t> choose_save_interval(const FirstSteps& measured, double elapsed_s,
                                                 double times_longer = 1);

// Knows after which steps the state is saved. All ranks have the same object, and make the same
// calls.
class PeriodicSaves {
 public:
  // `has_room`: whether automatic checkpoints have room; without, none is due.
  PeriodicSaves(const SaveInterval& interval, bool has_room)
      : interval_(interval), is_off_(interval.is_automatic && !has_room) {}

  const SaveInterval& interval() const { return interval_; }
  bool is_automatic() const { return interval_.is_automatic; }
  // Returns whether the number of steps is still to be chosen.
  bool is_open() const { return interval_.is_automatic && interval_.steps == 0 && !is_off_; }
  // Sets the number of steps; does nothing where it is 0. Returns whether it was set.
  bool choose(std::int64_t steps);
  // Returns whether the state is saved after the step.
  bool is_due(std::int64_t step) const;
  // Describes the chosen number, for the console.
  std::string describe_choice() const;

 private:
  SaveInterval interval_;
  bool is_off_;
};

}  // namespace terrace
