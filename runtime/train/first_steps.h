#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace terrace {

// The plan and the prediction for a run's step. Each number is of the rank that takes the most.
struct PlannedStep {
  std::optional<double> step_s = std::nullopt;  // none: nothing predicts it, as on a GPU
  std::size_t device_bytes = 0;                 // of the arenas
  std::size_t host_bytes = 0;
  // The memory of the process: the memory that was resident before, the arenas in its memory (of
  // all ranks that are its threads), and the memory that running the steps takes.
  std::size_t process_bytes = 0;
  // Returns the bytes that the run has taken of the GPU's memory. Empty: the CPU device.
  std::function<std::size_t()> device_bytes_taken = {};
};

// The measured counterpart of PlannedStep.
struct MeasuredStep {
  std::int64_t steps = 0;  // that the median is taken over
  double median_step_s = 0;
  std::size_t process_peak_bytes = 0;
  std::optional<std::size_t> device_bytes = std::nullopt;  // of a GPU
};

// Measures the first steps of a run. The very first step, in which memory is touched and kernels
// are loaded, is left out if there is another one.
class FirstSteps {
 public:
  static constexpr std::size_t kSteps = 3;

  // Adds the next step; once enough are there, further ones change nothing.
  void add(double step_s, std::size_t process_peak_bytes);
  // Returns whether there are enough steps for a meaningful median.
  bool is_full() const { return step_s_.size() == kSteps + 1; }
  // Returns none without a step.
  std::optional<MeasuredStep> measured() const;

 private:
  std::vector<double> step_s_;  // with the very first one
  std::size_t process_peak_bytes_ = 0;
};

// Return the comparison as text for people, and as an object for run.json.
std::string describe_measured(const PlannedStep& planned, const MeasuredStep& measured);
std::string to_json(const PlannedStep& planned, const MeasuredStep& measured);

}  // namespace terrace
