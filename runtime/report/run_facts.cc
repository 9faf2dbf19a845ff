#include "runtime/report/run_facts.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/json_depth.h"

namespace terrace::report {
namespace {

using nlohmann::ordered_json;

const ordered_json& part_of(const ordered_json& object, const char* key) {
  static const ordered_json kNothing;
  return object.is_object() && object.contains(key) ? object[key] : kNothing;
}

std::string text_at(const ordered_json& object, const char* key) {
  const ordered_json& value = part_of(object, key);
  return value.is_string() ? value.get<std::string>() : std::string();
}

std::optional<double> number_at(const ordered_json& object, const char* key) {
  const ordered_json& value = part_of(object, key);
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}

bool is_true_at(const ordered_json& object, const char* key) {
  const ordered_json& value = part_of(object, key);
  return value.is_boolean() && value.get<bool>();
}

std::vector<std::pair<std::string, double>> numbers_of(const ordered_json& object) {
  std::vector<std::pair<std::string, double>> numbers;
  if (!object.is_object()) return numbers;
  for (const auto& [key, value] : object.items()) {
    if (value.is_number()) numbers.emplace_back(key, value.get<double>());
  }
  return numbers;
}

std::vector<std::pair<std::string, std::string>> texts_of(const ordered_json& object) {
  std::vector<std::pair<std::string, std::string>> texts;
  if (!object.is_object()) return texts;
  for (const auto& [key, value] : object.items()) {
    texts.emplace_back(key, value.is_string() ? value.get<std::string>() : value.dump());
  }
  return texts;
}

std::vector<std::string> words_of(const ordered_json& list) {
  std::vector<std::string> words;
  if (!list.is_array()) return words;
  for (const ordered_json& word : list) {
    if (word.is_string()) words.push_back(word.get<std::string>());
  }
  return words;
}

std::vector<TierMemory> memory_of(const ordered_json& list) {
  std::vector<TierMemory> memory;
  if (!list.is_array()) return memory;
  for (const ordered_json& tier : list) {
    if (!tier.is_object()) continue;
    memory.push_back({.name = text_at(tier, "name"),
                      .budget_bytes = number_at(tier, "budget_bytes"),
                      .peak_bytes = number_at(tier, "peak_bytes").value_or(0),
                      .accounts = numbers_of(part_of(tier, "accounts"))});
  }
  return memory;
}

std::optional<PredictedStep> prediction_of(const ordered_json& json) {
  const std::optional<double> step_s = number_at(json, "step_s");
  if (!step_s.has_value()) return std::nullopt;
  const auto number = [&](const char* key) { return number_at(json, key).value_or(0); };
  return PredictedStep{.step_s = *step_s,
                       .tokens_per_s = number("tokens_per_s"),
                       .bottleneck = text_at(json, "bottleneck"),
                       .flops_per_s = number("flops_per_s"),
                       .read_bytes_per_s = number("nvme_read_bytes_per_s"),
                       .write_bytes_per_s = number("nvme_write_bytes_per_s"),
                       .drive_is_remembered = is_true_at(json, "nvme_is_remembered"),
                       .ops_are_measured = is_true_at(json, "ops_are_measured"),
                       .upload_bytes_per_s = number("upload_bytes_per_s"),
                       .download_bytes_per_s = number("download_bytes_per_s"),
                       .collective_bytes_per_s = number("collective_bytes_per_s")};
}

std::optional<MeasuredStart> measured_of(const ordered_json& json) {
  const std::optional<double> step_s = number_at(json, "step_s");
  if (!step_s.has_value()) return std::nullopt;
  const auto number = [&](const char* key) { return number_at(json, key).value_or(0); };
  return MeasuredStart{.steps = static_cast<std::int64_t>(number("steps")),
                       .step_s = *step_s,
                       .predicted_step_s = number_at(json, "predicted_step_s"),
                       .process_peak_bytes = number("process_peak_bytes"),
                       .planned_process_bytes = number("planned_process_bytes")};
}

std::optional<ComputeWaits> waits_of(const ordered_json& json) {
  const std::optional<double> seconds = number_at(json, "seconds");
  if (!seconds.has_value() || !(*seconds > 0)) return std::nullopt;
  return ComputeWaits{.steps = static_cast<std::int64_t>(number_at(json, "steps").value_or(0)),
                      .seconds = *seconds,
                      .causes = numbers_of(part_of(json, "compute_waited_s"))};
}

std::optional<RanksOfRun> mesh_of(const ordered_json& json) {
  const auto count = [&](const char* key) {
    return static_cast<std::int64_t>(std::clamp(number_at(json, key).value_or(1), 1.0, 1e9));
  };
  const RanksOfRun mesh = {.ranks = count("ranks"),
                           .data = count("data"),
                           .islands = count("islands"),
                           .tensor = count("tensor"),
                           .pipeline = count("pipeline")};
  return mesh.ranks > 1 ? std::optional(mesh) : std::nullopt;
}

std::optional<SharesOfRanks> shares_of(const ordered_json& json) {
  SharesOfRanks shares = {.micro_batches = {}, .origin = text_at(json, "origin")};
  const ordered_json& list = part_of(json, "micro_batches");
  if (!list.is_array() || list.empty()) return std::nullopt;
  for (const ordered_json& one : list) {
    if (!one.is_number()) return std::nullopt;
    shares.micro_batches.push_back(one.get<double>());
  }
  return shares;
}

}  // namespace

RunFacts read_run_facts(const std::string& path, std::vector<std::string>& remarks) {
  RunFacts facts;
  std::ifstream stream(path, std::ios::binary);
  if (!stream) {
    remarks.emplace_back(
        "run.json is missing or cannot be read, so the plan, the prediction, the machine and the "
        "command line are not known.");
    return facts;
  }
  std::ostringstream text;
  text << stream.rdbuf();
  ordered_json run;
  if (!nests_deeper(text.str())) run = ordered_json::parse(text.str(), nullptr, false);
  if (!run.is_object()) {
    remarks.emplace_back("run.json is not complete JSON, so nothing of it is shown.");
    return facts;
  }
  facts.version = text_at(run, "version");
  facts.started = text_at(run, "started");
  facts.host = texts_of(part_of(run, "host"));
  facts.command_line = words_of(part_of(run, "command_line"));
  facts.program = text_at(run, "program");
  if (part_of(run, "reasons").is_object()) facts.reasons = run["reasons"].dump();
  facts.memory = memory_of(part_of(run, "memory"));
  facts.mesh = mesh_of(part_of(run, "mesh"));
  facts.shares = shares_of(part_of(run, "rank_shares"));
  facts.prediction = prediction_of(part_of(run, "prediction"));
  facts.measured = measured_of(part_of(run, "measured"));
  facts.waits = waits_of(part_of(run, "waits"));
  facts.energy = text_at(part_of(run, "energy"), "measured");
  return facts;
}

}  // namespace terrace::report
