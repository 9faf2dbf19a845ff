#include "runtime/train/best_record.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/durable_file.h"

namespace terrace {
namespace {

using nlohmann::ordered_json;

constexpr const char* kBestSchema = "terrace.best/1";
constexpr const char* kEvaluations = "evaluations";

std::string path_of_best(const std::string& run_dir) {
  return (std::filesystem::path(run_dir) / "best.json").string();
}

std::string name_of_checkpoint(std::int64_t step) { return fmt::format("checkpoint-{}", step); }

// Returns the text of best.json; empty where there is none.
std::string read_best(const std::string& run_dir) {
  const std::string path = path_of_best(run_dir);
  return system_files().exists(path) ? read_whole_file(system_files(), path) : std::string();
}

// Returns none where the text is not of this version, for example because somebody has edited the
// file.
std::optional<EvaluationHistory> history_in(const std::string& best_json) {
  const auto best = nlohmann::json::parse(best_json, nullptr, false);
  try {
    if (best.at("schema") != kBestSchema) return std::nullopt;
    return parse_evaluation_history(best.at(kEvaluations).dump());
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace

std::string BestRecord::resume(const Resumed& from, const RankGroup& ranks) {
  std::string best;
  if (ranks.is_first() && from.is_in_place) best = read_best(from.run_dir);
  best = ranks.text_of_first(best);
  take(best, from);
  const auto has_checkpoint = [&](std::int64_t step) {
    const auto path = std::filesystem::path(from.run_dir) / name_of_checkpoint(step);
    return ranks.any(ranks.is_first() && step > 0 && is_checkpoint(path.string()));
  };
  if (!setting_.keeps_best && !has_checkpoint(kept_step_)) kept_step_ = 0;
  if (is_kept() && history_.last_step > 0 && history_.set_hash != setting_.set_hash) {
    history_ = {};
    kept_step_ = 0;
    return "the first validation set, or the part of it that is evaluated, differs from the "
           "previous run's: the search for the best state starts over";
  }
  if (!setting_.keeps_best && kept_step_ > 0) {
    return fmt::format(
        "{}, which --keep-best kept, stays; without --keep-best no better state is saved",
        name_of_checkpoint(kept_step_));
  }
  if (!setting_.keeps_best || history_.lowest_step == 0) return "";
  if (has_checkpoint(history_.lowest_step)) {
    kept_step_ = history_.lowest_step;
    kept_loss_ = history_.lowest_loss;
  } else if (!has_checkpoint(kept_step_)) {
    kept_step_ = 0;
    return fmt::format(
        "the state with the lowest validation loss, after step {}, is not in {}: the best of the "
        "next evaluations will be kept",
        history_.lowest_step, from.run_dir);
  }
  return "";
}

// Takes the later of the two histories that does not go beyond the step, and the checkpoint that
// the file says was kept.
void BestRecord::take(const std::string& best_json, const Resumed& from) {
  if (from.history) history_ = *from.history;
  const std::optional<EvaluationHistory> in_file = history_in(best_json);
  if (!in_file) return;
  if (in_file->last_step <= from.step && in_file->last_step >= history_.last_step) {
    history_ = *in_file;
  }
  const auto best = nlohmann::json::parse(best_json, nullptr, false);
  const auto has = [&best](const char* key) { return best.is_object() && best.contains(key); };
  if (!has("step") || !best["step"].is_number_integer()) return;
  if (!has("validation_loss") || !best["validation_loss"].is_number()) return;
  const auto step = best["step"].get<std::int64_t>();
  if (step > from.step) return;
  kept_step_ = step;
  kept_loss_ = best["validation_loss"].get<double>();
}

bool BestRecord::add(std::int64_t step, double loss) {
  if (!is_kept()) return false;
  history_.set_hash = setting_.set_hash;
  history_.add(step, loss);
  last_loss_ = loss;
  return setting_.keeps_best && (kept_step_ == 0 || loss < kept_loss_);
}

std::string BestRecord::describe_end() const {
  return fmt::format(
      "ends early after step {}: {} evaluations in a row had no lower {} than {:.4f}, the value "
      "after step {} (--early-stopping-patience)",
      history_.last_step, history_.without_better, name_of_loss(), history_.lowest_loss,
      history_.lowest_step);
}

std::string BestRecord::describe_kept(const std::string& run_dir) const {
  if (!setting_.keeps_best || kept_step_ == 0) return "";
  return fmt::format("best checkpoint: {}, after step {}, {} {:.4f}",
                     (std::filesystem::path(run_dir) / name_of_checkpoint(kept_step_)).string(),
                     kept_step_, name_of_loss(), kept_loss_);
}

std::string BestRecord::name_of_loss() const {
  return setting_.set.empty() ? "validation_loss" : "validation_loss/" + setting_.set;
}

std::optional<EvaluationHistory> BestRecord::history() const {
  if (!is_kept() || history_.last_step == 0) return std::nullopt;
  return history_;
}

void BestRecord::write(const std::string& run_dir) const {
  if (!is_kept() && kept_step_ > 0) return;  // the run before wrote the file, which names it
  const std::string path = path_of_best(run_dir);
  const std::optional<EvaluationHistory> evaluations = history();
  if (!evaluations) {
    if (const int error = system_files().remove(path); error != 0) {
      throw IoError({.operation = "remove", .path = path, .error_number = error});
    }
    return;
  }
  ordered_json best = {{"schema", kBestSchema}, {"set", setting_.set}};
  if (kept_step_ > 0) {
    best["checkpoint"] = name_of_checkpoint(kept_step_);
    best["step"] = kept_step_;
    best["validation_loss"] = kept_loss_;
  }
  best[kEvaluations] = ordered_json::parse(to_json(*evaluations));
  write_durable_file(path, best.dump(2) + "\n");
}

std::optional<std::int64_t> step_of_early_end(const std::string& run_dir, std::int64_t patience) {
  if (patience == 0) return std::nullopt;
  const std::optional<EvaluationHistory> history = history_in(read_best(run_dir));
  if (!history || history->without_better < patience) return std::nullopt;
  return history->last_step;
}

}  // namespace terrace
