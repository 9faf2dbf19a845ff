#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace terrace {

// What was planned and predicted of a run, of its rank that takes most.
struct PlannedStep {
  std::optional<double> step_s = std::nullopt;  // none: nothing predicts it, as on a GPU
  std::size_t device_bytes = 0;                 // of the arenas
  std::size_t host_bytes = 0;
  // Of the process: what it has had resident before, the arenas that lie in its memory, of all
  // ranks that are its threads, and what runs the steps.
  std::size_t process_bytes = 0;
  // Returns the bytes that the run has taken of the GPU's memory. Empty: the CPU device.
  std::function<std::size_t()> device_bytes_taken = {};
};

// What became of it.
struct MeasuredStep {
  std::int64_t steps = 0;  // that the median is of
  double median_step_s = 0;
  std::size_t process_peak_bytes = 0;
  std::optional<std::size_t> device_bytes = std::nullopt;  // of a GPU
};

// Measures the first steps of a run. Its very first step, in which memory is touched and kernels
// are loaded, is left out where there is another one.
class FirstSteps {
 public:
  static constexpr std::size_t kSteps = 3;

  // Adds the next step; later ones than are needed change nothing.
  void add(double step_s, std::size_t process_peak_bytes);
  // Whether so many are there that the median says something.
  bool is_full() const { return step_s_.size() == kSteps + 1; }
  // None without a step.
  std::optional<MeasuredStep> measured() const;

 private:
  std::vector<double> step_s_;  // with the very first one
  std::size_t process_peak_bytes_ = 0;
};

// One line for people, and an object for run.json.
std::string describe_measured(const PlannedStep& planned, const MeasuredStep& measured);
std::string to_json(const PlannedStep& planned, const MeasuredStep& measured);

}  // namespace terrace
