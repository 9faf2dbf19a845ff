#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "memory/cuda/gpu_energy.h"
#include "memory/host/host_energy.h"
#include "runtime/step/lane_executor.h"
#include "runtime/train/rank_group.h"
#include "runtime/train/train_setup.h"

// The energy that steps take, as far as the machine has counters of it.
namespace terrace {

// Returns the joules of a step of all ranks that were measured; none: nothing was.
std::optional<double> measured_joules(const RunTotals& totals);

// Measures the energy that a rank's machine takes between two moments. The counters of processors
// belong to a whole machine, so only one of its ranks reads them, the one with the number 0 on the
// host: the sum over all ranks then has each machine once. The counter of a GPU is read by the rank
// that computes on it. A read takes some microseconds: files are kept open. Used by one thread.
class StepEnergy {
 public:
  struct Setting {
    bool counts_host = true;
    std::string powercap = kPowercapDirectory;  // the folder of the processors' counters
    std::string gpu_address = {};               // on the PCI bus; empty: the CPU device
  };
  explicit StepEnergy(const Setting& setting);

  // Begins to count. The energy until now belongs to no step.
  void begin(std::int64_t now_ns);
  // Sets the joules that were taken since begin(), or since the last call: NaN where they were not
  // measured, and 0 for what another rank counts.
  void take(std::int64_t now_ns, RunTotals& totals);

  // Returns a sentence on what is measured on all machines, or why nothing is, with the remedy. All
  // ranks call it.
  std::string describe(const RankGroup& ranks) const;

 private:
  std::optional<HostEnergy> host_;
  std::optional<GpuEnergy> gpu_;
};

// Returns what a rank measures with its share of a machine. The environment variable
// TERRACE_POWERCAP names another folder with the counters of processors, for example the host's in
// a container (docs/metrics.md).
StepEnergy::Setting energy_setting(const MachineShare& machine);

// The energy of a run's steps, of all ranks.
class EnergySum {
 public:
  // `measured`: what StepEnergy::describe() says.
  explicit EnergySum(std::string measured) : measured_(std::move(measured)) {}

  void add(const RunTotals& totals, double step_s, std::int64_t tokens);
  // Returns a line for the end of a run; empty where nothing was measured.
  std::string text() const;
  // Returns an object for run.json.
  std::string json() const;

 private:
  std::string measured_;
  std::int64_t steps_ = 0;
  // The members below are about the steps that were measured.
  std::int64_t measured_steps_ = 0;
  double joules_ = 0;
  double seconds_ = 0;
  double tokens_ = 0;
};

}  // namespace terrace
