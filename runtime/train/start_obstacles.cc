#include "runtime/train/start_obstacles.h"

#include <fmt/format.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/function_ref.h"
#include "offload/space_check.h"
#include "runtime/train/resume.h"

namespace terrace {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;
constexpr int kExitDoesNotFit = 3;

// Adds the error that `check` throws; returns whether it threw nothing.
bool passes(std::vector<StartObstacle>& obstacles, FunctionRef<void()> check) {
  try {
    check();
    return true;
  } catch (const ConfigError& error) {
    obstacles.push_back({kExitUsage, reason_of(error)});
  } catch (const OutOfMemory& error) {
    obstacles.push_back({kExitDoesNotFit, reason_of(error)});
  } catch (const IoError& error) {
    obstacles.push_back({kExitFailed, reason_of(error)});
  }
  return false;
}

void check_memory(const RoomNeed& need, const MachineShare& machine) {
  const std::size_t usable_bytes = machine.limits.usable_bytes();
  if (need.memory_bytes <= usable_bytes) return;
  throw OutOfMemory(fmt::format("memory: {} are needed, but only {} are free here",
                                format_size(need.memory_bytes), format_size(usable_bytes)),
                    "lower --host-memory or --device-memory, or end other programs that use memory "
                    "here");
}

// Checks the free space of all directories together, because a directory with less room gets less
// data. The SIZE of each directory is checked once the drives have been measured.
void check_drive_space(const RoomNeed& need, const TierOptions& tiers) {
  if (need.nvme_bytes == 0) return;
  std::vector<std::string> directories;
  for (const NvmeDirectory& directory : tiers.nvme) directories.push_back(directory.path);
  const std::uint64_t free_bytes = free_space(directories);
  if (need.nvme_bytes <= free_bytes) return;
  throw OutOfMemory(
      fmt::format("nvme needs {}, but only {} are free here ({})", format_size(need.nvme_bytes),
                  format_size(free_bytes), fmt::join(directories, ", ")),
      "free space, or name a directory on a larger drive");
}

void check_run_directory(const TrainOptions& options, std::int64_t total_steps) {
  if (options.run.run_dir.empty()) return;
  if (is_complete(options, options.run.run_dir, total_steps)) return;
  refuse_second_run(options.run.resume, options.run.run_dir);
}

}  // namespace

std::string reason_of(const Error& error) {
  std::string text = error.what();
  const std::string remedy = "; " + error.remedy();
  if (!error.remedy().empty() && text.ends_with(remedy)) text.resize(text.size() - remedy.size());
  return text;
}

RoomNeed room_need(const ModelRuntimeOptions& options, const TierPlan& plan,
                   const MachineShare& machine, const RankGroup& ranks) {
  const PlanMemory memory = memory_of_plan(plan);
  const std::size_t on_host = memory.host_bytes + memory.beside_budgets() +
                              (options.backend == nullptr ? memory.device_bytes : 0);
  const auto of_this_host = [&](std::size_t bytes) {
    return static_cast<std::uint64_t>(
        ranks.sum_on_host(static_cast<double>(bytes), machine.ranks_on_host));
  };
  RoomNeed need;
  need.memory_bytes = of_this_host(on_host);
  need.nvme_bytes = of_this_host(plan.ledger[Tier::kNvme].peak_bytes);
  return need;
}

void check_room(const RoomNeed& need, const TierOptions& tiers, const MachineShare& machine) {
  check_memory(need, machine);
  check_drive_space(need, tiers);
}

std::vector<StartObstacle> start_obstacles(const TrainOptions& options, const RoomNeed& need,
                                           const SavingNeed& saving, const MachineShare& machine,
                                           std::int64_t total_steps) {
  std::vector<StartObstacle> found;
  const bool has_budgets =
      passes(found, [&] { check_budgets(options.tiers, machine, need.budgets); });
  const bool has_drives = passes(found, [&] { check_drives(options.tiers); });
  if (has_budgets) passes(found, [&] { check_memory(need, machine); });
  if (has_drives) passes(found, [&] { check_drive_space(need, options.tiers); });
  passes(found, [&] { check_run_directory(options, total_steps); });
  passes(found, [&] { plan_saving(saving); });
  return found;
}

}  // namespace terrace
