#include "runtime/train/inspection.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/hub_cache.h"
#include "base/json_depth.h"
#include "runtime/checkpoint/adapter_directory.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/hf_index.h"
#include "runtime/checkpoint/hf_weight_files.h"
#include "runtime/checkpoint/json_number.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/model/model_config.h"
#include "runtime/model/parameter_layout.h"
#include "runtime/train/data_inspection.h"
#include "runtime/train/resume.h"
#include "runtime/train/start_obstacles.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Document = nlohmann::ordered_json;

std::uint64_t size_of_file(const fs::path& path) {
  std::error_code failed;
  const std::uint64_t size = fs::file_size(path, failed);
  if (failed)
    throw IoError({.operation = "stat", .path = path.string(), .error_number = failed.value()});
  return size;
}

// Returns the sizes of the files in a directory added up, without its subdirectories.
std::uint64_t size_of_files(const fs::path& directory) {
  std::uint64_t size = 0;
  for (const std::string& name : system_files().list(directory.string())) {
    if (fs::is_regular_file(directory / name)) size += size_of_file(directory / name);
  }
  return size;
}

Document shape_of_model(const ModelConfig& config) {
  Document shape = {{"layers", config.layers},
                    {"width", config.width},
                    {"heads", config.heads},
                    {"key_value_heads", config.key_value_heads},
                    {"intermediate", config.intermediate},
                    {"vocabulary", config.vocabulary},
                    {"positions", config.positions},
                    {"tied", config.tied}};
  if (config.experts.count > 0) {
    shape["experts"] = config.experts.count;
    shape["experts_per_token"] = config.experts.per_row;
    shape["expert_intermediate"] = config.experts.intermediate;
    if (config.experts.shared_intermediate > 0) {
      shape["shared_expert_intermediate"] = config.experts.shared_intermediate;
    }
  }
  return shape;
}

Document tensors_of(const SafetensorsHeader& header) {
  Document tensors = Document::array();
  for (const SafetensorsTensor& tensor : header.tensors) {
    tensors.push_back({{"name", tensor.name},
                       {"type", name_of(tensor.type)},
                       {"shape", tensor.shape},
                       {"size_bytes", tensor.size_bytes()}});
  }
  return tensors;
}

// Adds the number of elements to the document, by type and in total.
void add_totals(const std::vector<SafetensorsHeader>& headers, Document& document) {
  std::uint64_t elements = 0;
  std::map<std::string_view, std::uint64_t> by_type;
  for (const SafetensorsHeader& header : headers) {
    for (const SafetensorsTensor& tensor : header.tensors) {
      elements += tensor.elements();
      by_type[name_of(tensor.type)] += tensor.elements();
    }
  }
  document["elements"] = elements;
  document["elements_by_type"] = by_type;
}

Document describe_safetensors(const std::string& path) {
  const SafetensorsFile file(path);
  Document document = {{"kind", "safetensors"},
                       {"path", path},
                       {"size_bytes", size_of_file(path)},
                       {"metadata", file.header().metadata}};
  add_totals({file.header()}, document);
  document["tensors"] = tensors_of(file.header());
  return document;
}

Document describe_model(const std::string& path) {
  Document document = {{"kind", "model"}, {"path", path}};
  try {
    document.update(shape_of_model(load_model_config(path)));
  } catch (const ConfigError& problem) {  // its files can be inspected anyway
    document["refused"] = problem.what();
  }
  const bool is_single = fs::exists(fs::path(path) / kHfSingleFile);
  std::vector<std::string> names;
  if (is_single) {
    names = {kHfSingleFile};
  } else if (has_hf_index(path)) {
    names = read_hf_index(path).files();
  }
  document["files"] = names;
  if (names.empty()) {
    document["weights"] = "none: a model directory without weights; --init random trains it";
    return document;
  }
  std::vector<SafetensorsHeader> headers;
  Document tensors = Document::array();
  std::uint64_t size = 0;
  for (const std::string& name : names) {
    const std::string file = (fs::path(path) / name).string();
    headers.push_back(SafetensorsFile(file).header());
    size += size_of_file(file);
    for (Document& tensor : tensors_of(headers.back())) tensors.push_back(std::move(tensor));
  }
  document["size_bytes"] = size;
  add_totals(headers, document);
  document["tensors"] = std::move(tensors);
  return document;
}

Document describe_adapter(const std::string& path) {
  const AdapterDirectory adapter(path);
  const std::string weights = (fs::path(path) / kAdapterWeights).string();
  const SafetensorsHeader header = SafetensorsFile(weights).header();
  Document document = {{"kind", "adapter"},
                       {"path", path},
                       {"base", adapter.base_model()},
                       {"rank", adapter.options().rank},
                       {"alpha", adapter.options().alpha},
                       {"size_bytes", size_of_file(weights)}};
  add_totals({header}, document);
  document["tensors"] = tensors_of(header);
  return document;
}

Document describe_checkpoint(const std::string& path) {
  const Checkpoint checkpoint(path);
  const CheckpointProgress& progress = checkpoint.progress();
  Document document = {{"kind", "checkpoint"},
                       {"path", path},
                       {"step", progress.step},
                       {"samples", progress.samples},
                       {"optimizer", checkpoint.rule().name},
                       {"device", progress.device},
                       {"sequence_length", progress.sequence_length},
                       {"size_bytes", size_of_files(path)}};
  if (progress.loss_scale) document["loss_scale"] = progress.loss_scale->scale;
  document.update(shape_of_model(checkpoint.model()));
  std::set<std::string> frozen;
  if (progress.frozen) {
    frozen.insert(progress.frozen->parameters.begin(), progress.frozen->parameters.end());
    document["frozen_from"] = progress.frozen->directory;
  }
  std::int64_t elements = 0;
  std::int64_t trained = 0;
  Document tensors = Document::array();
  for (const UnitLayout& unit : parameter_layout(checkpoint.model())) {
    for (const ParameterTensor& tensor : unit.tensors) {
      const bool trains = !frozen.contains(tensor.name);
      elements += tensor.elements();
      if (trains) trained += tensor.elements();
      std::vector<std::int64_t> shape = {tensor.rows};
      if (!tensor.is_vector) shape.push_back(tensor.columns);
      tensors.push_back({{"name", tensor.name}, {"shape", shape}, {"trainable", trains}});
    }
  }
  document["elements"] = elements;
  document["trained_elements"] = trained;
  document["tensors"] = std::move(tensors);
  return document;
}

// Returns the last complete row; null where there is none.
Document last_metrics_row(const std::string& file) {
  Document last;
  if (!fs::exists(file)) return last;
  const std::string text = read_whole_file(system_files(), file);
  std::size_t at = 0;
  for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', at)) {
    const Document row = Document::parse(text.substr(at, end - at), nullptr, false);
    if (row.is_object()) last = row;
    at = end + 1;
  }
  return last;
}

Document describe_run(const std::string& path) {
  Document document = {{"kind", "run"}, {"path", path}};
  document["checkpoints"] = later_checkpoints(path, 0);
  document["has_result"] = has_result(path);
  document["last_row"] = last_metrics_row((fs::path(path) / "metrics.jsonl").string());
  return document;
}

// Describes the events of a trace. Throws what json and whole_number() throw.
Document describe_events(const json& events_of_trace, const std::string& path) {
  std::map<std::int64_t, std::string> tracks;
  std::int64_t events = 0;
  double first = std::numeric_limits<double>::max();
  double last = 0;
  for (const json& event : events_of_trace) {
    const std::string phase = event.at("ph");
    if (phase == "M" && event.at("name") == "thread_name") {
      tracks[whole_number<std::int64_t>(event.at("tid"))] = event.at("args").at("name");
    }
    if (phase != "X") continue;
    ++events;
    const double begin = event.at("ts");
    first = std::min(first, begin);
    last = std::max(last, begin + event.value("dur", 0.0));
  }
  Document names = Document::array();
  for (const auto& [number, name] : tracks) names.push_back(name);
  constexpr double kMicrosecondsPerSecond = 1e6;
  return {{"kind", "trace"},
          {"path", path},
          {"tracks", names},
          {"events", events},
          {"seconds", events == 0 ? 0.0 : (last - first) / kMicrosecondsPerSecond}};
}

Document describe_trace(const std::string& path) {
  const std::string text = read_whole_file(system_files(), path);
  json trace;
  if (!nests_deeper(text)) trace = json::parse(text, nullptr, false);
  try {
    return describe_events(trace.at("traceEvents"), path);
  } catch (const std::exception& problem) {
    throw CorruptData(fmt::format("{} is not a complete trace: {}", path, problem.what()),
                      "name a trace.json from a run with --trace-steps that wrote it to the end");
  }
}

Document describe_data(const std::string& path, DataFormat format) {
  const DataRequest request = {.paths = {path},
                               .format = format,
                               .vocabulary = std::numeric_limits<std::int32_t>::max(),
                               .use = DataUse::kTraining};
  const OpenedData data = open_data(request);
  Document document = {{"kind", "data"},
                       {"path", path},
                       {"tokens", data.tokens->count()},
                       {"is_text", data.tokens->is_text()}};
  if (!data.validation_files.empty()) {
    document["validation_tokens"] = data.validation->count();
    document["validation_files"] = data.validation_files;
  }
  if (!data.left_out.empty()) document["left_out"] = data.left_out;
  if (!data.doubts.empty()) document["doubts"] = data.doubts;
  return document;
}

// Describes the path as data. Replaces the data reader's remedy, which is about --data: here the
// path may be any file.
Document describe_data_or_refuse(const std::string& path) {
  try {
    return describe_data(path, DataFormat::kAuto);
  } catch (const ConfigError& problem) {
    throw ConfigError(
        reason_of(problem),
        "inspect reads run directories, checkpoints, model and adapter directories, safetensors "
        "files, traces, text, JSON lines, llm.c and Megatron data, FILE.idx and FILE.mask; for "
        "files of bare ids, name their type: --data-format raw-u16 or raw-u32");
  }
}

Document describe_directory(const std::string& path) {
  const auto has = [&](const char* name) { return fs::exists(fs::path(path) / name); };
  if (is_checkpoint(path)) return describe_checkpoint(path);
  if (has("run.json")) return describe_run(path);
  if (has("config.json") || has_hf_weights(path)) return describe_model(path);
  if (is_adapter_directory(path)) return describe_adapter(path);
  return describe_data(path, DataFormat::kAuto);
}

Document describe(const std::string& given, DataFormat format) {
  std::error_code failed;
  if (!fs::exists(given, failed)) {
    throw ConfigError(fmt::format("{} does not exist", given), "name a file or directory");
  }
  const std::string path = hub_snapshot(given);
  if (format == DataFormat::kJsonl && fs::is_regular_file(path)) {
    return Document::parse(describe_json_lines(path));
  }
  if (format != DataFormat::kAuto) return describe_data(path, format);
  if (fs::is_directory(path, failed)) return describe_directory(path);
  const fs::path file = path;
  if (file.extension() == ".safetensors") return describe_safetensors(path);
  if (file.filename() == "trace.json") return describe_trace(path);
  if (file.filename() == "manifest.json" && file.has_parent_path()) {
    return describe_checkpoint(file.parent_path().string());
  }
  if (const auto companion = describe_data_companion(path)) return Document::parse(*companion);
  return describe_data_or_refuse(path);
}

}  // namespace

std::string inspect_path(const std::string& path, DataFormat format) {
  return describe(path, format).dump();
}

}  // namespace terrace
