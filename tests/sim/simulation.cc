#include "tests/sim/simulation.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <memory>
#include <optional>

#include "base/error.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/step/compile.h"
#include "tests/sim/sim_machine.h"
#include "tests/sim/sim_shape.h"
#include "tests/sim/virtual_files.h"

namespace terrace {
namespace {

constexpr const char* kRunDir = "/run";
constexpr std::int64_t kCheckpointEvery = 2;
// The number of lives. The last one has no faults.
constexpr int kLives = 4;

// The error that something happened that must not happen.
class Problem : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Returns a shape, which is made when it is first asked for and then kept: computing the shapes'
// references takes the longest.
const SimShape& shape_of(std::uint64_t number) {
  static std::array<std::unique_ptr<SimShape>, SimShape::kShapes> shapes;
  std::unique_ptr<SimShape>& shape = shapes.at(number % SimShape::kShapes);
  if (shape == nullptr) {
    shape = std::make_unique<SimShape>(static_cast<int>(number % SimShape::kShapes));
  }
  return *shape;
}

// The faults of one life.
struct Hardship {
  bool drive_fails = false;
  bool drive_flips = false;
  bool files_fail = false;
  std::optional<std::int64_t> cut_in_training;  // acts
  std::optional<std::int64_t> cut_in_files;     // calls
};

class Simulation {
 public:
  Simulation(std::uint64_t seed, PlantedBug bug)
      : bug_(bug),
        time_(seed),
        shape_(shape_of(time_.draw())),
        files_(time_.draw()),
        planted_files_(plant_in_files(bug, files_)) {
    planted_files_->make_directory(kRunDir);
    files_.sync_directory("/");
  }

  SimOutcome run() {
    try {
      for (int life = 0; life < kLives && !finished_; ++life) survive_life(life);
      if (!finished_) throw Problem("the run does not get to its end");
    } catch (const std::exception& problem) {
      outcome_.problem = problem.what();
    }
    outcome_.history = time_.history();
    return outcome_;
  }

 private:
  // --- what the seed decides
  // -----------------------------------------------------------------------

  Tier any_tier() {
    constexpr std::array kOften = {Tier::kNvme, Tier::kNvme, Tier::kHost, Tier::kDevice};
    return kOften.at(time_.draw() % kOften.size());
  }

  Program draw_program() {
    StepPolicy policy;
    policy.micro_batches = shape_.options().placement.micro_batches;
    policy.order =
        time_.draw_chance(0.5) ? MicroBatchOrder::kLayerMajor : MicroBatchOrder::kMicroBatchMajor;
    policy.unified = time_.draw_chance(0.3);
    policy.lookahead = static_cast<std::int32_t>(time_.draw() % 4);
    policy.updates_wait_for_norm = shape_.options().optimizer.max_grad_norm > 0;
    const std::uint64_t deferred = 1 + time_.draw() % shape_.model().unit_count();
    for (std::size_t u = 0; u < shape_.model().unit_count(); ++u) {
      policy.homes.push_back({any_tier(), any_tier(), any_tier()});
      policy.activations.push_back({any_tier(), time_.draw_chance(0.3)});
      policy.homes.back().streams_update = time_.draw_chance(0.3);
    }
    defer_first_updates(policy, shape_.model().groups, static_cast<std::int32_t>(deferred));
    TierBudgets budgets;
    if (time_.draw_chance(0.7)) budgets.fill(std::size_t{1});  // then most space is reused
    return compile_step(shape_.model(), policy, budgets);
  }

  Hardship draw_hardship(int life) {
    Hardship hardship;
    if (life + 1 == kLives) return hardship;
    switch (time_.draw() % 8) {
      case 0:
        hardship.drive_fails = true;
        break;
      case 1:
        hardship.drive_flips = true;
        break;
      case 2:
        hardship.files_fail = true;
        break;
      case 3:
      case 4:
        hardship.cut_in_training = static_cast<std::int64_t>(time_.draw() % 4000);
        break;
      case 5:
      case 6:
        hardship.cut_in_files = static_cast<std::int64_t>(time_.draw() % 400);
        break;
      default:
        break;
    }
    return hardship;
  }

  SimMachineOptions draw_machine(const Hardship& hardship) {
    constexpr std::array<std::int64_t, 4> kSpeeds = {10, 200, 3000, 40'000};
    SimMachineOptions options;
    options.drive.transfer_ns = kSpeeds.at(time_.draw() % kSpeeds.size());
    options.command_ns = kSpeeds.at(time_.draw() % kSpeeds.size());
    options.issue_ns = kSpeeds.at(time_.draw() % kSpeeds.size());
    options.drives = 1 + time_.draw() % 3;
    options.drive_depth = std::array{8, 16, 128}.at(time_.draw() % 3);
    FaultPlan& faults = options.drive.faults;
    faults.seed = time_.draw();
    if (time_.draw_chance(0.5)) faults.short_rate = 0.2;
    if (time_.draw_chance(0.5)) faults.delay_rate = 0.05;
    constexpr std::array kErrors = {EIO, ENOSPC, EINVAL, EFBIG};
    faults.error_number = kErrors.at(time_.draw() % kErrors.size());
    if (hardship.drive_fails) faults.fail_rate = 0.003;
    if (hardship.drive_flips) faults.corrupt_rate = 0.003;
    options.bug = bug_;
    options.bug_dice = time_.draw();
    return options;
  }

  // --- lives
  // ---------------------------------------------------------------------------------------

  void survive_life(int life) {
    const Hardship hardship = draw_hardship(life);
    try {
      live(hardship);
      finished_ = true;
    } catch (const PowerCut&) {
      lose_power();
    } catch (const IoError& error) {
      if (files_.power_is_off()) {
        lose_power();
      } else {
        judge(error, hardship);
      }
    } catch (const CorruptData& error) {
      judge(error, hardship);
    }
    files_.recover();
    time_.keep_power();
  }

  void lose_power() {
    ++outcome_.power_cuts;
    files_.lose_what_is_not_durable();
  }

  void judge(const IoError& error, const Hardship& hardship) {
    const IoError::Where& where = error.where();
    const bool is_drive = where.path.find("slots.bin") != std::string::npos;
    const bool is_explained = is_drive ? hardship.drive_fails : hardship.files_fail;
    if (!is_explained || where.path.empty() || where.operation.empty()) throw;
    if (is_drive && where.size == 0) throw Problem("an error without a length");
    ++outcome_.errors;
  }

  // Accepts an error if the drive may flip bits or fail. A checkpoint must never be found corrupt.
  void judge(const CorruptData& error, const Hardship& hardship) {
    const bool is_drive = std::string(error.what()).find("slots.bin") != std::string::npos;
    if (!is_drive || !(hardship.drive_flips || hardship.drive_fails)) throw;
    ++outcome_.errors;
  }

  void live(const Hardship& hardship) {
    Program program = draw_program();
    plant_in_program(bug_, time_.draw(), program);
    const SimMachineOptions options = draw_machine(hardship);
    prepare_files(hardship);
    SimMachine machine(shape_, program, time_, options);
    std::int64_t step = start(machine);
    if (hardship.cut_in_training) time_.cut_power_after(*hardship.cut_in_training);
    while (step < SimShape::kSteps) {
      step = train_to_boundary(machine, step);
      save(machine, step);
    }
  }

  void prepare_files(const Hardship& hardship) {
    if (time_.draw_chance(0.5)) files_.set_short_rate(0.2);
    constexpr std::array kErrors = {ENOSPC, EIO, EDQUOT};
    if (hardship.files_fail) {
      files_.fail_after(static_cast<std::int64_t>(time_.draw() % 400),
                        kErrors.at(time_.draw() % kErrors.size()));
    }
    if (hardship.cut_in_files) files_.cut_power_after(*hardship.cut_in_files);
  }

  // Starts from the last checkpoint, or afresh. Returns the step that it starts from.
  std::int64_t start(SimMachine& machine) {
    frozen_.reset();
    recover_run_directory(kRunDir, *planted_files_);
    const std::optional<std::string> latest = latest_checkpoint(kRunDir, *planted_files_);
    std::int64_t step = 0;
    if (latest.has_value()) {
      step = load(machine, *latest);
    } else {
      machine.fill_state(RandomState(SimShape::kSeed));
    }
    if (files_.power_is_off()) throw PowerCut();  // the last reads cannot be trusted
    if (step < committed_) {
      throw Problem(fmt::format("the checkpoint of step {} was committed, found is that of step {}",
                                committed_, step));
    }
    committed_ = step;
    expect_state(machine, step);
    if (time_.draw_chance(0.3)) step = go_back(machine, step);
    return step;
  }

  std::int64_t load(SimMachine& machine, const std::string& directory) {
    Checkpoint checkpoint(directory, *planted_files_);
    checkpoint.open(shape_.layout());
    machine.fill_state(checkpoint);
    frozen_ = checkpoint.progress().frozen;
    return checkpoint.progress().step;
  }

  // Goes back to an earlier checkpoint, as a user does with --resume PATH: the later checkpoints
  // are given up.
  std::int64_t go_back(SimMachine& machine, std::int64_t step) {
    const std::string earlier = fmt::format("{}/checkpoint-{}", kRunDir, step - kCheckpointEvery);
    if (!is_checkpoint(earlier, *planted_files_)) return step;
    committed_ = load(machine, earlier);
    remove_later_checkpoints(kRunDir, committed_, *planted_files_);
    expect_state(machine, committed_);
    return committed_;
  }

  std::int64_t train_to_boundary(SimMachine& machine, std::int64_t done) {
    machine.begin_step(done + 1);
    for (std::int64_t step = done + 1;; ++step) {
      const bool boundary = step % kCheckpointEvery == 0 || step == SimShape::kSteps;
      if (!boundary) machine.begin_step(step + 1);
      const StepResult result = machine.finish_step();
      const StepResult& expected = shape_.expected_after(step).result;
      if (result.loss != expected.loss || result.gradient_norm != expected.gradient_norm) {
        throw Problem(fmt::format("step {}: loss {}, norm {}; expected were {}, {}", step,
                                  result.loss, result.gradient_norm, expected.loss,
                                  expected.gradient_norm));
      }
      if (!boundary) continue;
      machine.drain();
      expect_state(machine, step);
      return step;
    }
  }

  void expect_state(SimMachine& machine, std::int64_t step) {
    if (machine.state_hash() == shape_.expected_after(step).state) return;
    throw Problem(fmt::format("after step {} the state is not what it must be", step));
  }

  void save(SimMachine& machine, std::int64_t step) {
    machine.hurry(true);
    CheckpointProgress progress = {.step = step, .samples = step, .seed = SimShape::kSeed};
    if (!frozen_parameters(shape_.layout()).empty()) {
      if (!frozen_) {
        frozen_ =
            store_frozen(kRunDir, shape_.layout(), RandomState(SimShape::kSeed), *planted_files_);
      }
      progress.frozen = frozen_;
    }
    write_checkpoint(
        kRunDir, progress,
        {shape_.options().model, shape_.layout(), *shape_.options().optimizer.rule},
        [&](StateField field, const UnitLayout& unit, std::int64_t begin, std::span<float> out) {
          machine.state().read(field, static_cast<std::int32_t>(unit.index), begin, out);
        },
        *planted_files_);
    machine.hurry(false);
    committed_ = step;
    ++outcome_.checkpoints;
    if (time_.draw_chance(0.5)) remove_old_checkpoints(kRunDir, 1, *planted_files_);
  }

  const PlantedBug bug_;
  VirtualTime time_;
  const SimShape& shape_;
  VirtualFiles files_;
  std::unique_ptr<FileSystem> planted_files_;
  SimOutcome outcome_;
  std::optional<FrozenReference> frozen_;  // the one that this life has stored or found
  std::int64_t committed_ = 0;             // the step of the last checkpoint whose writing returned
  bool finished_ = false;
};

}  // namespace

SimOutcome simulate(std::uint64_t seed, PlantedBug bug) {
  SimOutcome outcome = Simulation(seed, bug).run();
  if (!outcome.problem.empty()) {
    outcome.problem =
        fmt::format("seed {}: {} (replay: TERRACE_SIM_SEED={})", seed, outcome.problem, seed);
  }
  return outcome;
}

}  // namespace terrace
