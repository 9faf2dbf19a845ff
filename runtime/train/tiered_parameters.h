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

// Parameters that live in memory tiers, as in a training: those of a unit are read from the drive
// while the units before it compute. The parameters of a whole model go through a budget of host
// memory that holds two units.
class TieredParameters final : public UnitParameters {
 public:
  struct Options {
    std::string name;                // of the model, for messages
    std::vector<UnitLayout> layout;  // frozen_layout()
    bool tied = false;
    DType type = DType::kBF16;
    TierOptions tiers;
    int threads = 1;
    // Of the host's budget, what the caller takes beside the parameters.
    std::size_t key_value_bytes = 0;
    std::size_t computation_bytes = 0;
  };

  // Plans, and makes the arena and the files; no parameter is there yet. Throws OutOfMemory, with
  // the ledger, where the budgets do not hold what is needed; ConfigError, IoError.
  TieredParameters(const Options& options, Log& log);
  ~TieredParameters() override;

  // Puts all parameters where they live. `source` is called by several threads.
  void fill(ElementSource source);
  // Throws UsageError before fill().
  void for_each_unit(FunctionRef<void(const Turn&)> use) override;

  // What is used of each tier, the caller's part of the host with it.
  const Ledger& ledger() const { return ledger_; }
  // Bytes that for_each_unit() reads from drives.
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
  std::unique_ptr<UnitTasks> tasks_;
  std::unique_ptr<TierRuntime> runtime_;  // uses the above
};

}  // namespace terrace
