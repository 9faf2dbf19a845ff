#include "runtime/compare/recorded_run.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/json_depth.h"
#include "runtime/checkpoint/durable_file.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;
using Document = nlohmann::ordered_json;

constexpr auto kResults = std::to_array<std::string_view>(
    {"loss", "grad_norm", "learning_rate", "loss_scale", "skipped", "tokens"});
constexpr std::string_view kValidationLoss = "validation_loss";

std::string file_in(const std::string& run_dir, const char* name) {
  return (fs::path(run_dir) / name).string();
}

bool is_there(const std::string& path) {
  std::error_code none;
  return fs::is_regular_file(path, none);
}

void check_is_run(const std::string& path) {
  std::error_code none;
  if (!fs::exists(path, none)) {
    throw ConfigError(fmt::format("{} does not exist", path),
                      "name two run directories (--run-dir of terrace train)");
  }
  const bool is_run =
      is_there(file_in(path, "metrics.jsonl")) || is_there(file_in(path, "run.json"));
  if (is_run) return;
  const fs::path parent = fs::absolute(path).lexically_normal().parent_path();
  const std::string above =
      is_there((parent / "run.json").string())
          ? fmt::format("name the run directory above it, {}", parent.string())
          : "name two run directories (--run-dir of terrace train)";
  throw ConfigError(
      fmt::format("{} is no run directory: it has neither metrics.jsonl nor run.json", path),
      above);
}

void read_options(RecordedRun& run) {
  const std::string path = file_in(run.path, "config.toml");
  if (!is_there(path)) return run.notes.push_back(fmt::format("{} is missing", path));
  try {
    const toml::table table = toml::parse(read_whole_file(system_files(), path));
    for (const auto& [key, node] : table) {
      std::ostringstream text;
      node.visit([&](const auto& value) { text << value; });
      run.options[std::string(key.str())] = text.str();
    }
  } catch (const toml::parse_error& problem) {
    run.notes.push_back(fmt::format("{} is not TOML: {}", path, problem.description()));
  }
}

Document parsed(const std::string& text) {
  return nests_deeper(text) ? Document() : Document::parse(text, nullptr, false);
}

void read_facts(RecordedRun& run) {
  const std::string path = file_in(run.path, "run.json");
  if (!is_there(path)) return run.notes.push_back(fmt::format("{} is missing", path));
  const Document json = parsed(read_whole_file(system_files(), path));
  if (!json.is_object()) return run.notes.push_back(fmt::format("{} is no JSON object", path));
  const auto add = [&](const char* name, const Document& of, const char* key) {
    if (of.is_object() && of.contains(key))
      run.facts[name] = of[key].is_string() ? of[key].get<std::string>() : of[key].dump();
  };
  add("version", json, "version");
  if (json.contains("host")) add("cpu", json["host"], "cpu");
  add("training data", json, "training_data_hash");
  add("data", json, "data");
}

// Numbers are printed so that they read back to the same bits.
void read_rows(RecordedRun& run) {
  const std::string path = file_in(run.path, "metrics.jsonl");
  if (!is_there(path)) return run.notes.push_back(fmt::format("{} is missing", path));
  std::istringstream lines(read_whole_file(system_files(), path));
  std::size_t torn = 0;
  for (std::string line; std::getline(lines, line);) {
    const Document row = parsed(line);
    const bool is_row = row.is_object() && row.contains("step") && row["step"].is_number_integer();
    if (!is_row) {
      ++torn;
      continue;
    }
    RecordedRun::Results& results = run.rows[row["step"].get<std::int64_t>()];
    results.clear();
    for (const auto& [key, value] : row.items()) {
      const bool is_result =
          key.starts_with(kValidationLoss) || std::ranges::find(kResults, key) != kResults.end();
      if (is_result) results[key] = value.dump();
    }
  }
  if (torn == 0) return;
  run.notes.push_back(fmt::format("{}: {} line{} left out, because they are no rows", path, torn,
                                  torn == 1 ? " is" : "s are"));
}

void read_hashes(RecordedRun& run) {
  for (const auto& [rank, path] : hash_paths(run.path)) {
    RecordedHashes& hashes = run.hashes[rank] = read_hash_file(path);
    if (hashes.dropped_bytes == 0) continue;
    run.notes.push_back(
        fmt::format("{}: the last {} bytes are torn and left out", path, hashes.dropped_bytes));
  }
}

}  // namespace

RecordedRun read_recorded_run(const std::string& path) {
  check_is_run(path);
  RecordedRun run;
  run.path = path;
  read_options(run);
  read_facts(run);
  read_rows(run);
  read_hashes(run);
  return run;
}

}  // namespace terrace
