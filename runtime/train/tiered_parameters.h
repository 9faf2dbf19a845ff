#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/log.h"
#include "memory/ledger.h"
#include "runtime/config/train_options.h"
#include "runtime/engine/tier_runtime.h"
#include "runtime/model/parameter_layout.h"
#include "runtime/train/unit_parameters.h"

namespace terrace {

// Parameters that live in memory tiers, as in training: a unit's parameters are read from the drive
// while the units before it compute. The parameters of a whole model pass through a budget of host
// memory that holds two units. Experts, and the rows of an embedding that is not tied, may be left
// where they are: then a turn's reader reads only those that are asked for.
class TieredParameters final : public UnitParameters {
 public:
  struct Options {
    std::string name;                // of the model, for messages
    std::vector<UnitLayout> layout;  // frozen_layout()
    bool tied = false;
    bool reads_experts = false;  // TokenSampler::Shape::reads_experts
    DType type = DType::kBF16;
    TierOptions tiers;
    int threads = 1;
    // The parts of the host's budget that the caller takes beside the parameters.
    std::size_t key_value_bytes = 0;
    std::size_t computation_bytes = 0;
  };

  // Plans, and makes the arena and the files, which hold no parameters yet. Throws OutOfMemory,
  // with the ledger, where the budgets are too small; ConfigError, IoError.
  TieredParameters(const Options& options, Log& log);
  ~TieredParameters() override;

  // Puts all parameters into their homes. Several threads call `source`, with units in place of
  // groups.
  void fill(ElementSource source);
  // Throws UsageError if called before fill().
  void for_each_unit(FunctionRef<void(const Turn&)> use) override;

  // Returns the use of each tier, including the caller's part of the host's budget.
  const Ledger& ledger() const { return ledger_; }
  // Returns the bytes that the last for_each_unit() has read from drives, including the reads of
  // its readers. Before the first one, returns the bytes that each of them reads without readers.
  std::size_t bytes_read() const;

 private:
  class UnitTasks;

  TierRuntimeOptions runtime_options(const Options& options) const;
  void check_two_units(const Options& options, const ComputeModel& units) const;
  TierPlan plan(const Options& options) const;
  void add_beside(const Options& options);

  const TierBudgets budgets_;
  const TierRuntimeOptions options_;
  const TierPlan plan_;
  Ledger ledger_;
  std::size_t bytes_of_readers_ = 0;  // in the last for_each_unit()
  std::unique_ptr<UnitTasks> tasks_;
  std::unique_ptr<TierRuntime> runtime_;  // uses the above
};

}  // namespace terrace
