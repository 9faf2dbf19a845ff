#include "runtime/compare/run_diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <set>

#include "base/error.h"

namespace terrace {
namespace {

constexpr auto kWithoutEffect = std::to_array<std::string_view>({"stop_after_step",
                                                                 "master_weights",
                                                                 "recompute",
                                                                 "micro_batch_order",
                                                                 "experts_per_group",
                                                                 "zero_stage",
                                                                 "zero_partition",
                                                                 "island_ranks",
                                                                 "gradient_noise_scale",
                                                                 "pipeline_parallel",
                                                                 "pipeline_schedule",
                                                                 "virtual_stages",
                                                                 "stage_speeds",
                                                                 "run_dir",
                                                                 "collective_timeout",
                                                                 "hierarchical_collectives",
                                                                 "eval_every",
                                                                 "eval_samples",
                                                                 "sample_prompts",
                                                                 "log_every",
                                                                 "checkpoint_every",
                                                                 "keep_last",
                                                                 "keep_best",
                                                                 "save_dtype",
                                                                 "resume",
                                                                 "overwrite_later",
                                                                 "progress",
                                                                 "trace_steps",
                                                                 "record_hashes",
                                                                 "dry_run",
                                                                 "explain",
                                                                 "json",
                                                                 "device_memory",
                                                                 "host_memory",
                                                                 "nvme",
                                                                 "io_engine",
                                                                 "lookahead",
                                                                 "threads",
                                                                 "place_parameters",
                                                                 "place_gradients",
                                                                 "place_optimizer",
                                                                 "place_activations",
                                                                 "place_gradient_errors",
                                                                 "early_stopping_patience"});

// Returns the number of data-parallel ranks of a run of threads, from its options.
double data_ranks_of(const RecordedRun& run) {
  const auto number = [&](const char* key) {
    const auto found = run.options.find(key);
    return found == run.options.end() ? 1.0
                                      : std::max(1.0, std::strtod(found->second.c_str(), nullptr));
  };
  return number("local_ranks") / number("tensor_parallel") / number("pipeline_parallel");
}

bool may_change_results(const std::string& key, bool has_same_ranks) {
  if (key == "local_ranks") return !has_same_ranks;
  return std::ranges::find(keys_without_effect(), key) == keys_without_effect().end();
}

void compare_options(const RecordedRun& a, const RecordedRun& b, RunDiff& diff) {
  const auto value = [](const RecordedRun& run, const std::string& key) {
    const auto found = run.options.find(key);
    return found == run.options.end() ? std::string() : found->second;
  };
  std::set<std::string> keys;
  for (const RecordedRun* run : {&a, &b}) {
    for (const auto& [key, text] : run->options) keys.insert(key);
  }
  const bool has_same_ranks = data_ranks_of(a) == data_ranks_of(b);
  for (const std::string& key : keys) {
    const OptionDifference one{key, value(a, key), value(b, key),
                               may_change_results(key, has_same_ranks)};
    if (one.a != one.b && key != "run_dir") diff.options.push_back(one);
  }
}

void compare_facts(const RecordedRun& a, const RecordedRun& b, RunDiff& diff) {
  for (const auto& [name, of_a] : a.facts) {
    const auto other = b.facts.find(name);
    if (other == b.facts.end() || other->second == of_a) continue;
    const std::string cpu = name == "cpu" ? ", whose instruction sets may round otherwise" : "";
    diff.notes.push_back(
        fmt::format("the runs have another {}: {} and {}{}", name, of_a, other->second, cpu));
  }
}

void compare_rows(const RecordedRun& a, const RecordedRun& b, RunDiff& diff) {
  std::set<std::string> differing;
  for (const auto& [step, of_a] : a.rows) {
    const auto row = b.rows.find(step);
    if (row == b.rows.end()) continue;
    if (diff.rows++ == 0) diff.first_row = step;
    diff.last_row = step;
    for (const auto& [column, value] : of_a) {
      const auto other = row->second.find(column);
      const bool is_equal = other == row->second.end() || other->second == value;
      if (is_equal || !differing.insert(column).second) continue;
      diff.columns.push_back({column, step, value, other->second});
    }
  }
}

void note_longer_run(const RecordedRun& one, const RecordedRun& other, RunDiff& diff) {
  const std::int64_t more = std::ranges::count_if(
      one.rows, [&](const auto& row) { return !other.rows.contains(row.first); });
  if (more == 0) return;
  diff.notes.push_back(fmt::format("{} has {} step{} that {} does not have", one.path, more,
                                   more == 1 ? "" : "s", other.path));
}

void note_lacking_hashes(const RecordedRun& a, const RecordedRun& b, RunDiff& diff) {
  if (a.hashes.empty() && b.hashes.empty()) return;
  const RecordedRun& without = a.hashes.empty() ? a : b;
  diff.notes.push_back(
      fmt::format("{} has no hashes, so only the rows are compared; train it with --record-hashes "
                  "to find the op",
                  without.path));
}

}  // namespace

std::span<const std::string_view> keys_without_effect() { return kWithoutEffect; }

RunDiff diff_runs(const RecordedRun& a, const RecordedRun& b) {
  RunDiff diff;
  for (const RecordedRun* run : {&a, &b}) {
    diff.notes.insert(diff.notes.end(), run->notes.begin(), run->notes.end());
  }
  compare_options(a, b, diff);
  compare_facts(a, b, diff);
  compare_rows(a, b, diff);
  note_longer_run(a, b, diff);
  note_longer_run(b, a, diff);
  const bool have_hashes = !a.hashes.empty() && !b.hashes.empty();
  have_hashes ? void(diff.hashes = compare_hashes(a, b)) : note_lacking_hashes(a, b, diff);
  const bool compares_hashes = diff.hashes && diff.hashes->obstacle.empty();
  if (diff.rows == 0 && !compares_hashes) {
    throw ConfigError(
        fmt::format("{} and {} have no step in common that could be compared", a.path, b.path),
        "name two runs of the same steps, each with its metrics.jsonl");
  }
  diff.is_equal = diff.columns.empty() && (!compares_hashes || !diff.hashes->step.has_value());
  return diff;
}

}  // namespace terrace
