#include "runtime/train/checkpoint_room.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/bytes.h"
#include "base/error.h"
#include "runtime/checkpoint/adapter_directory.h"
#include "runtime/train/periodic_saves.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kKeptAutomatic = 2;

constexpr const char* kMoreRoom = "free space, or name a --run-dir on a larger drive";

// Returns how many checkpoints the run will write at the interval that the user gave; 0 where the
// interval is automatic.
std::int64_t count_named(const SavingNeed& need) {
  const std::int64_t every = need.interval.steps;
  if (need.interval.is_automatic || every == 0) return 0;
  return need.steps.last / every - need.steps.done / every;
}

// Returns how many automatic checkpoints are kept where there is room for all.
std::int64_t most_automatic(const SavingNeed& need) {
  return need.keep_last > 0 ? need.keep_last : kKeptAutomatic;
}

// Returns whether `kept` checkpoints have room beside the one that is being written, or beside the
// result.
bool can_keep(const SavingNeed& need, std::int64_t kept) {
  const auto more = static_cast<std::uint64_t>(std::max<std::int64_t>(0, kept - need.removable));
  const std::uint64_t last = std::max(need.checkpoint_bytes, need.result_bytes);
  return *need.free_bytes >= more * need.checkpoint_bytes + last;
}

void plan_automatic(const SavingNeed& need, SavingPlan& plan) {
  const std::int64_t most = most_automatic(need);
  plan.kept_automatic = most;
  if (!need.free_bytes.has_value()) return;
  while (plan.kept_automatic > 0 && !can_keep(need, plan.kept_automatic)) --plan.kept_automatic;
  if (plan.kept_automatic == most) return;
  const std::string sizes =
      fmt::format("a checkpoint takes {} and final/ takes {}, but only {} are free",
                  format_size(need.checkpoint_bytes), format_size(need.result_bytes),
                  format_size(*need.free_bytes));
  plan.doubts.push_back(
      plan.kept_automatic > 0
          ? fmt::format("--checkpoint-every auto keeps {} of its checkpoints instead of {}: {}; {}",
                        plan.kept_automatic, most, sizes, kMoreRoom)
          : fmt::format("--checkpoint-every auto saves nothing before this run ends: {}; {}", sizes,
                        kMoreRoom));
}

void plan_named(const SavingNeed& need, SavingPlan& plan) {
  const std::int64_t count = count_named(need);
  if (count == 0 || !need.free_bytes.has_value()) return;
  const std::string flag = fmt::format("--checkpoint-every {}", need.interval.steps);
  if (*need.free_bytes < need.checkpoint_bytes) {
    throw OutOfMemory(
        fmt::format("{}: a checkpoint takes {}, but only {} are free on the drive of the run "
                    "directory",
                    flag, format_size(need.checkpoint_bytes), format_size(*need.free_bytes)),
        fmt::format("{}; --checkpoint-every 0 saves only when the run ends", kMoreRoom));
  }
  const std::int64_t there = need.keep_last > 0 ? need.removable : 0;
  const std::int64_t most = need.keep_last > 0 ? need.keep_last + 1 : count;
  const auto added = static_cast<std::uint64_t>(std::clamp<std::int64_t>(most - there, 1, count));
  // Divides, because the product could exceed 2^64 bytes; a drive has less.
  if (added <= *need.free_bytes / need.checkpoint_bytes) return;
  plan.doubts.push_back(fmt::format(
      "{}: {} checkpoints of {} need more than the {} that are free; checkpoints without room are "
      "not saved: give --keep-last, or {}",
      flag, added, format_size(need.checkpoint_bytes), format_size(*need.free_bytes), kMoreRoom));
}

// Adds a doubt where there is no room for what is written in any case when the run ends.
void doubt_end(const SavingNeed& need, SavingPlan& plan) {
  const bool has_result = need.steps.last == need.steps.total;
  const std::uint64_t bytes = has_result ? need.result_bytes : need.checkpoint_bytes;
  if (need.free_bytes.value_or(bytes) >= bytes) return;
  plan.doubts.push_back(fmt::format("{} takes about {} when the run ends, but only {} are free: {}",
                                    has_result ? "final/" : "its checkpoint", format_size(bytes),
                                    format_size(*need.free_bytes), kMoreRoom));
}

// Returns the directory, or the nearest one above it that exists.
std::string nearest_directory(const std::string& path) {
  std::error_code ignored;
  fs::path found = fs::absolute(path, ignored);
  while (!fs::exists(found, ignored) && found.has_relative_path()) found = found.parent_path();
  return found.string();
}

bool are_on_one_drive(const std::string& one, const std::string& other) {
  struct stat of_one = {};
  struct stat of_other = {};
  return ::stat(one.c_str(), &of_one) == 0 && ::stat(other.c_str(), &of_other) == 0 &&
         of_one.st_dev == of_other.st_dev;
}

std::uint64_t result_bytes(const CheckpointedModel& model, const WeightTypes& types) {
  constexpr std::uint64_t kRest = 64 * kKiB;  // config.json and headers
  const bool is_adapter = model.config.adapter.is_there();
  std::uint64_t bytes = kRest;
  for (const UnitLayout& unit :
       is_adapter ? adapter_layout(model.config, model.layout) : model.layout) {
    for (const ParameterTensor& tensor : unit.tensors) {
      bytes += static_cast<std::uint64_t>(tensor.elements()) * size_of(types.of(tensor.name));
    }
  }
  return bytes;
}

std::string describe_interval(const SavingNeed& need, const SavingPlan& plan) {
  const std::int64_t steps = need.interval.steps;
  if (!need.interval.is_automatic) {
    return steps == 0 ? std::string("saves only when the run ends (--checkpoint-every 0)")
                      : fmt::format("saves the state every {} steps", steps);
  }
  if (plan.kept_automatic == 0) return "saves only when the run ends";
  return steps == 0
             ? fmt::format(
                   "saves the state about every {:.0f} minutes "
                   "(--checkpoint-every auto)",
                   kSaveSeconds / 60)
             : fmt::format("saves the state every {} steps (--checkpoint-every auto)", steps);
}

}  // namespace

SavingPlan plan_saving(const SavingNeed& need) {
  SavingPlan plan;
  if (need.interval.is_automatic) plan_automatic(need, plan);
  plan_named(need, plan);
  doubt_end(need, plan);
  return plan;
}

std::string describe_saving(const SavingNeed& need, const SavingPlan& plan,
                            const std::string& run_dir) {
  std::string text = describe_interval(need, plan);
  const std::int64_t count = count_named(need);
  if (plan.kept_automatic == 0 && count == 0) return text;
  text += plan.kept_automatic > 0
              ? fmt::format(": {} each, keeping the last {}", format_size(need.checkpoint_bytes),
                            plan.kept_automatic)
              : fmt::format(": {} checkpoints of {}", count, format_size(need.checkpoint_bytes));
  if (need.free_bytes.has_value()) text += fmt::format(", {} free", format_size(*need.free_bytes));
  return run_dir.empty() ? text : fmt::format("{} in {}", text, run_dir);
}

SavingNeed saving_need(const SavingRun& run) {
  const std::string& run_dir = run.run_dir;
  SavingNeed need;
  need.interval = run.options.run.checkpoint_every;
  need.keep_last = run.options.run.keep_last;
  need.steps = run.steps;
  need.checkpoint_bytes = checkpoint_bytes(run.model) + run.error_bytes;
  need.result_bytes = result_bytes(run.model, run.result_types);
  if (!run_dir.empty()) {
    need.removable = need.keep_last > 0 ? std::ssize(later_checkpoints(run_dir, 0))
                                        : std::ssize(automatic_checkpoints(run_dir));
  }
  const std::string directory = nearest_directory(run_dir.empty() ? "." : run_dir);
  need.free_bytes = system_files().free_bytes(directory);
  const bool shares_drive = std::ranges::any_of(
      run.options.tiers.nvme,
      [&](const NvmeDirectory& drive) { return are_on_one_drive(drive.path, directory); });
  if (shares_drive && need.free_bytes.has_value()) {
    *need.free_bytes -= std::min(*need.free_bytes, run.nvme_bytes);
  }
  return need;
}

std::size_t staging_room(const Ledger& ledger, std::size_t usable_bytes) {
  const TierLedger& host = ledger[Tier::kHost];
  const std::size_t half = usable_bytes / 2;
  if (!host.budget_bytes.has_value()) return half;
  return std::min(half, *host.budget_bytes - std::min(host.peak_bytes, *host.budget_bytes));
}

}  // namespace terrace
