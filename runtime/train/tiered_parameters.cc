#include "runtime/train/tiered_parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/bytes.h"
#include "base/check.h"
#include "base/error.h"
#include "memory/host/host_limits.h"
#include "runtime/model/expert_groups.h"
#include "runtime/train/option_flags.h"
#include "runtime/train/train_setup.h"

namespace terrace {
namespace {

// Room for a program's buffers other than parameters, such as a loss, each on a page boundary.
constexpr std::size_t kSmallBuffersBytes = 16 * kKiB;

constexpr auto kHostTier = static_cast<std::size_t>(Tier::kHost);

UnitKind kind_of(std::size_t unit, std::size_t units) {
  if (unit == 0) return UnitKind::kEmbedding;
  return unit + 1 == units ? UnitKind::kHead : UnitKind::kBlock;
}

// Returns units that touch nothing but their parameters: the data that is computed with these lies
// elsewhere.
ComputeModel units_of(const TieredParameters::Options& options) {
  ComputeModel model;
  model.compute_type = options.type;
  for (std::size_t u = 0; u < options.layout.size(); ++u) {
    UnitModel unit;
    unit.kind = kind_of(u, options.layout.size());
    UnitStep forward;
    if (options.tied && unit.kind == UnitKind::kHead) {
      unit.groups = model.units.front().groups;
      forward.groups = {0, 1};
    }
    const UnitLayout& layout = options.layout[u];
    if (options.reads_experts && !options.tied && u == 0) forward.groups.clear();
    unit.forward = {forward};
    const std::int64_t elements =
        options.reads_experts ? layout.shared_elements() : layout.padded_elements;
    model.add(std::move(unit), {.padded_elements = elements, .frozen_elements = elements});
    if (!options.reads_experts) continue;
    for (const ExpertGroup& expert : expert_groups(layout, 1)) {
      const std::int64_t of_expert = expert.elements.end - expert.elements.begin;
      model.add_group({.padded_elements = of_expert,
                       .frozen_elements = of_expert,
                       .first_element = expert.elements.begin});
    }
  }
  return model;
}

MachineShare share_of_this_process() {
  MachineShare machine;
  machine.limits = read_host_limits();
  return machine;
}

TierBudgets budgets_of(const TierOptions& tiers) {
  const MachineShare machine = share_of_this_process();
  check_budgets(tiers, machine, budgeted_memory(tiers, machine));
  check_drives(tiers);
  return budgets_for(tiers, machine);
}

std::size_t beside_bytes(const TieredParameters::Options& options) {
  return options.key_value_bytes + options.computation_bytes;
}

std::size_t bytes_of(const ParameterGroup& group, DType type) {
  return static_cast<std::size_t>(group.padded_elements) * size_of(type);
}

// Returns the most bytes that a unit and the next one take together. In a tied model the embedding
// also stays in memory for the head, so that each parameter is read once.
std::size_t largest_pair_bytes(const ComputeModel& model) {
  std::vector<std::size_t> bytes;
  for (const UnitModel& unit : model.units) {
    const auto own = static_cast<std::size_t>(unit.groups.front());
    const bool is_used = !unit.forward.front().groups.empty();
    bytes.push_back(is_used ? bytes_of(model.groups.at(own), model.compute_type) : 0);
  }
  std::size_t most = 0;
  if (model.units.back().groups.size() > 1) {  // the head uses the embedding's weight
    for (std::size_t u = 1; u + 1 < bytes.size(); ++u) {
      most = std::max(most, bytes.front() + bytes[u] + bytes[u + 1]);
    }
    return most;
  }
  for (std::size_t u = 0; u + 1 < bytes.size(); ++u) most = std::max(most, bytes[u] + bytes[u + 1]);
  return most;
}

std::size_t all_bytes(const ComputeModel& model) {
  std::size_t bytes = 0;
  for (const ParameterGroup& group : model.groups) bytes += bytes_of(group, model.compute_type);
  return bytes;
}

}  // namespace

// Passes the parameters of each task's unit to the `use` of for_each_unit(), and reads the others.
class TieredParameters::UnitTasks final : public StepCompute, public ParameterReader {
 public:
  explicit UnitTasks(const Options& options)
      : is_tied_(options.tied),
        has_reader_(options.reads_experts),
        head_(static_cast<std::int32_t>(options.layout.size()) - 1) {}

  void run(const KernelContext& /*context*/, const ComputeTask& task,
           const UnitMemory& memory) override {
    TERRACE_CHECK(use_ != nullptr);
    const bool has_tied = is_tied_ && task.unit == head_;
    (*use_)({task.unit, memory.of(Role::kParameters),
             has_tied ? memory.groups[1].parameters : nullptr, has_reader_ ? this : nullptr});
  }
  void read(std::int32_t unit, std::int64_t begin, std::span<std::byte> out) override {
    const StepModel& model = state_->model();
    const std::int32_t group = model.group_at(unit, begin);
    const std::int64_t first = model.groups.at(static_cast<std::size_t>(group)).first_element;
    state_->read_stored(group, begin - first, out);
  }
  void set_use(const FunctionRef<void(const Turn&)>* use) { use_ = use; }
  void set_state(UnitState& state) { state_ = &state; }

 private:
  const bool is_tied_;
  const bool has_reader_;
  const std::int32_t head_;
  UnitState* state_ = nullptr;
  const FunctionRef<void(const Turn&)>* use_ = nullptr;
};

TieredParameters::TieredParameters(const Options& options, Log& log)
    : budgets_(budgets_of(options.tiers)),
      options_(runtime_options(options)),
      plan_(plan(options)),
      ledger_(plan_.ledger),
      tasks_(std::make_unique<UnitTasks>(options)) {
  add_beside(options);
  runtime_ = std::make_unique<TierRuntime>(options_, plan_, *tasks_, log);
  tasks_->set_state(runtime_->state());
}

TieredParameters::~TieredParameters() = default;

TierRuntimeOptions TieredParameters::runtime_options(const Options& options) const {
  TierRuntimeOptions runtime;
  runtime.trains = false;
  runtime.threads = options.threads;
  runtime.placement.name_of_option = flag_of_option;
  runtime.placement.homes[StateClass::kParameters] =
      tier_of(options.tiers.places[StateClass::kParameters]);
  runtime.placement.lookahead = options.tiers.lookahead;
  runtime.placement.has_nvme = !options.tiers.nvme.empty();
  runtime.placement.asked =
      fmt::format("the parameters of {} in {}, plus {} of keys and values and {} of activations",
                  options.name, name_of(options.type), format_size(options.key_value_bytes),
                  format_size(options.computation_bytes));
  runtime.nvme.directories = options.tiers.nvme;
  runtime.nvme.engine = options.tiers.io_engine;
  runtime.nvme.named_files = false;
  runtime.budgets = budgets_;
  if (auto& host = runtime.budgets.at(kHostTier))
    host = *host - std::min(*host, beside_bytes(options));
  return runtime;
}

// Checks that two units fit: with room for only one, nothing could be read while it computes.
void TieredParameters::check_two_units(const Options& options, const ComputeModel& units) const {
  const auto& budget = budgets_.at(kHostTier);
  const bool has_drive = !options.tiers.nvme.empty();
  const std::size_t all = all_bytes(units);
  const std::size_t parameters = has_drive ? std::min(all, largest_pair_bytes(units)) : all;
  const std::size_t needed = parameters + kSmallBuffersBytes + beside_bytes(options);
  if (!budget || needed <= *budget) return;
  Ledger ledger;
  ledger[Tier::kHost].budget_bytes = budget;
  ledger[Tier::kHost].peak_bytes = ledger[Tier::kHost].live_peak_bytes = needed;
  ledger[Tier::kHost][Account::kParameters] = parameters;
  ledger[Tier::kHost][Account::kWorkspace] = kSmallBuffersBytes;
  ledger[Tier::kHost][Account::kActivations] = beside_bytes(options);
  std::string remedy =
      fmt::format("raise --host-memory to {} or more", format_size(needed + needed / 128));
  if (!has_drive) {
    remedy += ", or give --nvme DIR, a directory on a drive from which the parameters can be read";
  }
  const bool may_shorten = options.key_value_bytes > needed - *budget;
  if (may_shorten) remedy += ", or lower --max-new-tokens";
  throw OutOfMemory(
      fmt::format("{} does not fit: {}\nasked for: {}; {} must be in memory at once\n{}",
                  options.name, describe_shortfall(ledger), options_.placement.asked,
                  has_drive ? "the parameters of one unit and of the next one" : "all parameters",
                  to_text(ledger)),
      remedy);
}

TierPlan TieredParameters::plan(const Options& options) const {
  const ComputeModel units = units_of(options);
  check_two_units(options, units);
  return plan_tiers(units, options_);
}

// Adds the caller's memory to the ledger: the plan's budget is only the part that the caller
// leaves.
void TieredParameters::add_beside(const Options& options) {
  TierLedger& host = ledger_[Tier::kHost];
  host.budget_bytes = budgets_.at(kHostTier);
  host.peak_bytes += beside_bytes(options);
  host.live_peak_bytes += beside_bytes(options);
  host[Account::kActivations] += beside_bytes(options);
}

void TieredParameters::fill(ElementSource source) {
  const std::vector<ParameterGroup>& groups = runtime_->model().groups;
  runtime_->fill_state(
      [&](StateField field, std::int32_t group, std::int64_t begin, std::span<float> out) {
        const ParameterGroup& of = groups.at(static_cast<std::size_t>(group));
        source(field, of.unit, of.first_element + begin, out);
      });
}

void TieredParameters::for_each_unit(FunctionRef<void(const Turn&)> use) {
  tasks_->set_use(&use);
  const std::size_t before = runtime_->state().bytes_read();
  runtime_->evaluate({});
  bytes_of_readers_ = runtime_->state().bytes_read() - before;
  tasks_->set_use(nullptr);
}

std::size_t TieredParameters::bytes_read() const {
  return static_cast<std::size_t>(lane_bytes(plan_.evaluation, Lane::kRead)) + bytes_of_readers_;
}

}  // namespace terrace
