#include "tests/e2e/mesh_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <vector>

#include "tests/e2e/checkout_paths.h"
#include "tests/e2e/mesh_combinations.h"

namespace terrace {
namespace {

constexpr std::uint64_t kMatrixSeed = 1;
constexpr int kVariantsOfGroup = 4;
constexpr int kMostFailures = 5;
constexpr int kMostRefusedPercent = 15;
// A run takes a tenth of a second. One that takes this long hangs.
constexpr auto kMeshHangsAfter = std::chrono::seconds(60);
// Each stage of a pipeline may ask for more than the stage that was refused before it.
constexpr int kMostRaises = 12;

const char* const kRoomy = "64MiB";
const char* const kNextToNothing = "4KiB";

std::uint64_t matrix_seed() {
  const char* given = std::getenv("TERRACE_MATRIX_SEED");
  return given != nullptr ? std::stoull(given) : kMatrixSeed;
}

// Returns the largest size, in bytes, that a refusal names for the flag; 0 if it names none.
double size_to_raise_to(const std::string& errors, const std::string& flag) {
  double largest = 0;
  const std::string before = fmt::format("raise {} to ", flag);
  for (std::size_t at = errors.find(before); at != std::string::npos;
       at = errors.find(before, at + 1)) {
    const std::string size = errors.substr(at + before.size(), 32);
    const double number = std::stod(size);
    const char unit = size.at(size.find(' ') + 1);
    const double scale = unit == 'G' ? 1 << 30 : unit == 'M' ? 1 << 20 : unit == 'K' ? 1 << 10 : 1;
    largest = std::max(largest, number * scale);
  }
  return largest;
}

// Returns the first clause of a message, without its numbers.
std::string reason_of(const Outcome& outcome) {
  const std::string before = "error: ";
  const std::size_t at = outcome.errors.find(before);
  if (at == std::string::npos) return fmt::format("exit code {}", outcome.code);
  std::string reason;
  for (const char c : outcome.errors.substr(at + before.size())) {
    if (c == '\n' || c == ';') break;
    const bool digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (!digit || reason.empty() || reason.back() != 'N') reason += digit ? 'N' : c;
  }
  return reason;
}

std::string command_text(const Arguments& launcher, const Arguments& arguments) {
  return fmt::format("{}", fmt::join(launcher + Arguments{program_path()} + arguments, " "));
}

// Returns whether the program says that the last of several stages has only the head.
bool has_head_alone(const std::string& output, int head) {
  return output.find(fmt::format(", {} on; the figures below", head)) != std::string::npos;
}

enum class Verdict : std::uint8_t { kSame, kRefused, kDiffers };

// The group's plain run, and the runs that are compared with it.
class GroupRuns {
 public:
  GroupRuns(const MeshGroup& group, MeshTally& tally)
      : group_(group), tally_(tally), training_(group.config()) {}

  // Returns false if there is nothing to compare with. Each step must have a learning rate of its
  // own, as otherwise the use of another step's rate would not show.
  bool train_reference() {
    const bool handed_over = group_.handover_after_step > 0;
    MeshRun plain;
    plain.first = plain_variant(group_.mesh);
    if (handed_over) plain.second = plain_variant(group_.mesh_after);
    plain.stop_after_step = group_.handover_after_step;
    if (execute(plain, "reference") != Verdict::kSame) {
      ADD_FAILURE() << "the plain run fails: " << reason_ << '\n' << story_;
      return false;
    }
    reference_story_ = story_;
    rows_ = training_.rows("reference");
    files_ = training_.files("reference", "final");
    EXPECT_EQ(rows_.size(), static_cast<std::size_t>(group_.steps)) << story_;
    EXPECT_FALSE(files_.empty());
    for (std::size_t i = 1; i < rows_.size(); ++i) {
      EXPECT_NE(rows_[i].columns.at("learning_rate"), rows_[i - 1].columns.at("learning_rate"));
    }
    return rows_.size() == static_cast<std::size_t>(group_.steps);
  }

  void compare(const MeshRun& run, int number) {
    ++tally_.runs;
    const std::string name = fmt::format("run{}", number);
    head_alone_ = false;
    Verdict verdict = execute(run, name);
    if (verdict == Verdict::kSame && differs(run, name)) verdict = Verdict::kDiffers;
    if (verdict == Verdict::kRefused) {
      ++tally_.refused;
      MeshTally::Refusals& refusals = tally_.refusals[reason_];
      if (refusals.times++ == 0) refusals.example = model_text() + story_ + errors_;
      return;
    }
    count(run);
    if (verdict == Verdict::kSame) return;
    ++tally_.failures;
    ADD_FAILURE() << "variant " << number << ": " << reason_ << '\n'
                  << model_text() << "variant:\n"
                  << story_ << "reference:\n"
                  << reference_story_;
  }

 private:
  std::string model_text() const {
    return fmt::format("TERRACE_MATRIX_SEED={}, model: {}\n", group_.seed, group_.config());
  }

  // Runs all pieces. The first goes into the run directory `name`, the second into the same one or
  // one beside it.
  Verdict execute(const MeshRun& run, const std::string& name) {
    story_.clear();
    Arguments more;
    if (run.second.has_value()) {
      more = {"--stop-after-step", std::to_string(run.stop_after_step)};
    }
    Verdict verdict = start(run.first, name, more);
    if (verdict != Verdict::kSame || !run.second.has_value()) return verdict;
    const std::string saved =
        training_.path(fmt::format("{}/checkpoint-{}", name, run.stop_after_step));
    return start(*run.second, run.other_directory ? name + "b" : name,
                 {"--resume", run.other_directory ? saved : "auto"});
  }

  struct Budgets {
    std::string device;
    std::string host;
  };

  Verdict start(const MeshVariant& variant, const std::string& name, const Arguments& more) {
    Budgets budgets = {variant.device_room.has_value() ? kNextToNothing : kRoomy,
                       variant.host_room.has_value() ? kNextToNothing : kRoomy};
    if (variant.as_processes) {  // Threads are refused for the same reasons, and sooner.
      MeshVariant threads = variant;
      threads.as_processes = false;
      run_with_enough(threads, name, more + Arguments{"--dry-run"}, budgets);
    }
    return verdict_of(variant, run_with_enough(variant, name, more, budgets));
  }

  // Starts the program until its budgets are enough: each refusal names the next ones.
  Outcome run_with_enough(const MeshVariant& variant, const std::string& name,
                          const Arguments& more, Budgets& budgets) {
    Arguments launcher;
    if (variant.as_processes) launcher = mpirun(variant.ranks());
    for (int raises = 0;; ++raises) {
      Arguments arguments = group_.arguments() + variant.arguments() + more;
      arguments = arguments + Arguments{"--host-memory", budgets.host};
      if (variant.has_device) arguments = arguments + Arguments{"--device-memory", budgets.device};
      if (variant.has_drive) arguments = arguments + training_.nvme();
      const Arguments command = training_.command(name, arguments);
      Outcome outcome = ProgramRun(command, {}, launcher).wait(kMeshHangsAfter);
      if (outcome.code == 3 && raises < kMostRaises && raise(variant, outcome.errors, budgets)) {
        continue;
      }
      story_ += command_text(launcher, command) + '\n';
      return outcome;
    }
  }

  // Returns whether a budget was raised. Budgets that are roomy already are not raised.
  static bool raise(const MeshVariant& variant, const std::string& errors, Budgets& budgets) {
    const auto raise_one = [&](const char* flag, const std::optional<double>& room,
                               std::string& size) {
      const double told = size_to_raise_to(errors, flag);
      if (told == 0 || !room.has_value()) return false;
      size = std::to_string(static_cast<std::uint64_t>(told * *room));
      return true;
    };
    const bool device = raise_one("--device-memory", variant.device_room, budgets.device);
    const bool host = raise_one("--host-memory", variant.host_room, budgets.host);
    return device || host;
  }

  Verdict verdict_of(const MeshVariant& variant, const Outcome& outcome) {
    if (variant.stages > 1 && has_head_alone(outcome.output, group_.layers + 1)) {
      head_alone_ = true;
    }
    const bool began = outcome.output.find("\nstep ") != std::string::npos;
    if ((outcome.code == 2 || outcome.code == 3) && !began) {
      reason_ = reason_of(outcome);
      errors_ = outcome.errors;
      return Verdict::kRefused;
    }
    if (outcome.code != 0) {
      reason_ =
          fmt::format("exit code {}, signal {}\n{}", outcome.code, outcome.signal, outcome.errors);
      return Verdict::kDiffers;
    }
    if (training_.nvme_is_empty()) return Verdict::kSame;
    reason_ = "files stay on the drive";
    return Verdict::kDiffers;
  }

  bool differs(const MeshRun& run, const std::string& name) {
    std::vector<MetricsRow> rows = training_.rows(name);
    std::string last = name;
    if (run.second.has_value() && run.other_directory) {
      last += "b";
      const std::vector<MetricsRow> tail = training_.rows(last);
      rows.insert(rows.end(), tail.begin(), tail.end());
    }
    reason_.clear();
    for (std::size_t i = 0; i < std::max(rows.size(), rows_.size()); ++i) {
      const std::string found = i < rows.size() ? rows[i].bits : "no row";
      const std::string wanted = i < rows_.size() ? rows_[i].bits : "no row";
      if (found == wanted) continue;
      reason_ += fmt::format("step {} has {} instead of {}; ", i + 1, found, wanted);
    }
    const auto files = training_.files(last, "final");
    for (const auto& [file, content] : files_) {
      const auto same = files.find(file);
      if (same != files.end() && same->second == content) continue;
      reason_ += fmt::format("final/{} differs; ", file);
    }
    if (files.size() != files_.size()) reason_ += "final/ has other files; ";
    std::filesystem::remove_all(training_.path(name));
    std::filesystem::remove_all(training_.path(last));
    return !reason_.empty();
  }

  void count(const MeshRun& run) {
    const MeshVariant& last = run.second.value_or(run.first);
    const auto any = [&](auto holds) { return holds(run.first) || holds(last) ? 1 : 0; };
    tally_.without_clipping += group_.clips() ? 0 : 1;
    tally_.with_stages += any([](const MeshVariant& v) { return v.stages > 1; });
    tally_.head_alone += head_alone_ ? 1 : 0;
    tally_.corner_head_alone += head_alone_ && group_.is_corner() ? 1 : 0;
    tally_.near_least_budget += any(
        [](const MeshVariant& v) { return v.device_room.has_value() || v.host_room.has_value(); });
    tally_.as_processes += any([](const MeshVariant& v) { return v.as_processes; });
    tally_.resumed += run.second.has_value() ? 1 : 0;
    tally_.on_another_mesh += group_.handover_after_step > 0 ? 1 : 0;
  }

  const MeshGroup& group_;
  MeshTally& tally_;
  TinyTraining training_;
  std::vector<MetricsRow> rows_;
  std::map<std::string, std::string> files_;
  std::string reference_story_;
  std::string story_;   // the command lines of the run that is looked at
  std::string errors_;  // of a run that was refused
  std::string reason_;  // why it was refused or what is wrong with it
  bool head_alone_ = false;
};

}  // namespace

std::string MeshTally::text() const {
  std::string text = fmt::format(
      "{} variants in {} groups: {} refused, {} failed; of the others {} without clipping, {} with "
      "stages, {} with the head alone ({} of them without clipping and with one micro-batch), {} "
      "near the least budget, {} by mpirun, {} resumed ({} on another mesh)\n",
      runs, groups, refused, failures, without_clipping, with_stages, head_alone, corner_head_alone,
      near_least_budget, as_processes, resumed, on_another_mesh);
  for (const auto& [reason, refusals] : refusals) {
    text += fmt::format("refused {} times: {}\n", refusals.times, reason);
    text += fmt::format("the first of them:\n{}", refusals.example);
  }
  return text;
}

MeshTally expect_matrix_holds(std::uint64_t offset, int count) {
  MeshTally tally;
  const std::uint64_t first = matrix_seed() + offset;
  const int groups = (count + kVariantsOfGroup - 1) / kVariantsOfGroup;
  for (int i = 0; i < groups && tally.failures < kMostFailures; ++i) {
    const MeshGroup group = draw_group(first + static_cast<std::uint64_t>(i));
    SCOPED_TRACE(fmt::format("TERRACE_MATRIX_SEED={}", group.seed));
    GroupRuns runs(group, tally);
    ++tally.groups;
    if (!runs.train_reference()) break;
    int number = 0;
    for (const MeshRun& run : draw_runs(group, kVariantsOfGroup)) runs.compare(run, number++);
  }
  std::cout << tally.text();
  EXPECT_LT(tally.refused * 100, kMostRefusedPercent * tally.runs) << tally.text();
  return tally;
}

}  // namespace terrace
