#include "runtime/train/plan_gains.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"

namespace terrace {
namespace {

using enum MachineFigure;

constexpr double kTwice = 2;

// A change of a machine: the figures that double.
struct MachineChange {
  std::string_view text;
  std::vector<MachineFigure> figures;
  bool is_of_devices = false;  // only for machines with devices
};

std::vector<MachineChange> machine_changes() {
  return {
      {"as many drives again", {kDriveBytes, kDriveReadBytesPerS, kDriveWriteBytesPerS}},
      {"a network between nodes that is twice as fast", {kNetworkBytesPerS}},
      {"links within a node that are twice as fast", {kNodeLinkBytesPerS}, true},
      {"links between host and devices that are twice as fast",
       {kUploadBytesPerS, kDownloadBytesPerS},
       true},
      {"devices that compute twice as fast",
       {kBf16FlopsPerS, kFp16FlopsPerS, kFp32FlopsPerS},
       true},
      {"device memory that is twice as fast", {kDeviceMemoryBytesPerS}, true},
      {"host memory and updates that are twice as fast", {kHostMemoryBytesPerS, kUpdateBytesPerS}},
  };
}

// Doubles the figures that are known. Returns whether there was one.
bool double_figures(Machine& machine, std::span<const MachineFigure> figures) {
  bool is_changed = false;
  for (const MachineFigure figure : figures) {
    if (!machine.knows(figure)) continue;
    machine.at(figure)->value *= kTwice;
    is_changed = true;
  }
  return is_changed;
}

// Returns whether the step of a rank is planned alike on both machines, so that only the times
// differ.
bool plans_alike(const Machine& a, const Machine& b) {
  constexpr std::array kOfPlans = {kDeviceMemoryBytes, kHostMemoryBytes, kDriveBytes,
                                   kUploadBytesPerS, kCores};
  return std::ranges::all_of(kOfPlans, [&](MachineFigure figure) {
    return a.knows(figure) == b.knows(figure) && a.value_or(figure, 0) == b.value_or(figure, 0);
  });
}

class Gains {
 public:
  Gains(const PlanOptions& options, const Machine& machine, const RunForecast& forecast)
      : options_(options),
        machine_(machine),
        step_s_(forecast.step_s),
        run_(options, machine, PlanEffort::kBrief),
        stages_(run_.plan_stages()) {}

  std::vector<PlanGain> find() {
    for (const MachineChange& change : machine_changes()) try_machine(change);
    try_memory("host", kHostMemoryBytes, &TierOptions::host_memory);
    if (machine_.devices > 0) {
      try_memory("device", kDeviceMemoryBytes, &TierOptions::device_memory);
    }
    try_settings();
    std::ranges::stable_sort(gains_, std::ranges::greater(), &PlanGain::times_as_fast);
    return std::move(gains_);
  }

 private:
  void add(std::string change, bool is_of_machine, double step_s) {
    const double times = step_s_ / step_s;
    if (times >= kLeastGain) gains_.push_back({std::move(change), is_of_machine, times});
  }

  void try_machine(const MachineChange& change) {
    if (change.is_of_devices && machine_.devices == 0) return;
    Machine other = machine_;
    if (!double_figures(other, change.figures)) return;
    if (plans_alike(machine_, other)) {
      add(std::string(change.text), true, run_.forecast(stages_, other).step_s);
    } else {
      try_anew(std::string(change.text), true, options_, other);
    }
  }

  // Doubles a memory, and with it the budget that the user has set for it.
  void try_memory(std::string_view name, MachineFigure figure,
                  std::optional<std::size_t> TierOptions::* budget) {
    Machine other = machine_;
    const double more = machine_.value_or(figure, 0);
    if (!double_figures(other, std::array{figure})) return;
    PlanOptions options = options_;
    std::optional<std::size_t>& bytes = options.train.tiers.*budget;
    std::string text =
        fmt::format("{} more {} memory", format_size(static_cast<std::size_t>(more)), name);
    if (bytes.has_value()) {
      text = fmt::format("{} more {} memory for each rank", format_size(*bytes), name);
      *bytes *= 2;
    }
    try_anew(text, true, options, other);
  }

  void try_anew(const std::string& change, bool is_of_machine, const PlanOptions& options,
                const Machine& machine) {
    const PlanOutcome outcome = try_plan(options, machine, PlanEffort::kBrief);
    if (outcome.forecast.has_value()) add(change, is_of_machine, outcome.forecast->step_s);
  }

  void try_setting(const std::string& flags, void (*change)(TrainOptions& train)) {
    PlanOptions other = options_;
    change(other.train);
    try_anew(flags, false, other, machine_);
  }

  void try_settings() {
    try_larger_micro_batch();
    const StepOptions& step = options_.train.step;
    if (step.recompute != RecomputeChoice::kNone) {
      try_setting("--recompute none",
                  [](TrainOptions& train) { train.step.recompute = RecomputeChoice::kNone; });
    }
    if (step.recompute != RecomputeChoice::kFull) {
      try_setting("--recompute full",
                  [](TrainOptions& train) { train.step.recompute = RecomputeChoice::kFull; });
    }
    try_orders();
    if (run_.mesh().data == 1) return;
    try_zero_stage<1>();
    try_zero_stage<2>();
    try_zero_stage<3>();
  }

  void try_orders() {
    if (run_.train().batch.gradient_accumulation_steps == 1) return;
    if (run_.mesh().pipeline > 1) {
      try_setting("--pipeline-schedule interleaved", [](TrainOptions& train) {
        train.step.pipeline_schedule = PipelineSchedule::kInterleaved;
      });
      return;
    }
    try_setting("--micro-batch-order layer-major", [](TrainOptions& train) {
      train.step.micro_batch_order = OrderChoice::kLayerMajor;
    });
    try_setting("--micro-batch-order micro-batch-major", [](TrainOptions& train) {
      train.step.micro_batch_order = OrderChoice::kMicroBatchMajor;
    });
  }

  template <int Stage>
  void try_zero_stage() {
    try_setting(fmt::format("--zero-stage {}", Stage),
                [](TrainOptions& train) { train.step.zero_stage = Stage; });
  }

  void try_larger_micro_batch() {
    const BatchOptions& batch = run_.train().batch;
    if (batch.gradient_accumulation_steps % 2 != 0) return;
    PlanOptions other = options_;
    other.train.batch = batch;
    other.train.batch.micro_batch_size *= 2;
    other.train.batch.gradient_accumulation_steps /= 2;
    try_anew(fmt::format("--micro-batch-size {} --gradient-accumulation-steps {}",
                         other.train.batch.micro_batch_size,
                         other.train.batch.gradient_accumulation_steps),
             false, other, machine_);
  }

  const PlanOptions& options_;
  const Machine& machine_;
  const double step_s_;
  const PlannedRun run_;
  const PlannedStages stages_;
  std::vector<PlanGain> gains_;
};

}  // namespace

std::vector<PlanGain> plan_gains(const PlanOptions& options, const Machine& machine,
                                 const RunForecast& forecast) {
  return Gains(options, machine, forecast).find();
}

std::string describe_gains(const std::vector<PlanGain>& gains) {
  if (gains.empty()) return "no change that was tried makes a step 2 % faster or more";
  std::string text;
  for (const bool is_of_machine : {true, false}) {
    if (std::ranges::count(gains, is_of_machine, &PlanGain::is_of_machine) == 0) continue;
    text += fmt::format("{}what would help, of {}:", text.empty() ? "" : "\n",
                        is_of_machine ? "the machine" : "the settings");
    for (const PlanGain& gain : gains) {
      if (gain.is_of_machine != is_of_machine) continue;
      text += fmt::format("\n  {}: {:.2f} times as fast", gain.change, gain.times_as_fast);
    }
  }
  return text;
}

}  // namespace terrace
