#include "runtime/config/ds_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/json_depth.h"
#include "base/nearest_name.h"
#include "runtime/config/ds_config_keys.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

std::string read_ds_text(const std::string& path) {
  errno = 0;
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  const bool is_directory = std::filesystem::is_directory(path);
  if (!stream.is_open() || stream.bad() || is_directory) {
    throw ConfigError(
        fmt::format("--ds-config {}: {}", path, std::strerror(is_directory ? EISDIR : errno)),
        "name a readable DeepSpeed configuration");
  }
  return text.str();
}

// Parses the text. Throws if an object has a key twice, because one of the two values would be
// lost.
Json parse_ds_text(const std::string& path, const std::string& text) {
  std::vector<std::set<std::string>> keys;
  const auto callback = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
      throw ConfigError(fmt::format("{}: {} is given twice", path, value.get<std::string>()),
                        "keep only one of the two");
    }
    return true;
  };
  if (nests_deeper(text)) {
    throw ConfigError(fmt::format("{}: nested too deeply", path), "name a DeepSpeed configuration");
  }
  try {
    Json root = Json::parse(text, callback, true, true);
    if (root.is_object()) return root;
  } catch (const Json::exception& error) {  // also for a number beyond a double
    throw ConfigError(fmt::format("{}: {}", path, error.what()),
                      "write it as JSON; comments are allowed");
  }
  throw ConfigError(fmt::format("{}: not a JSON object", path), "name a DeepSpeed configuration");
}

// Returns a value as it would be written after a flag.
std::string text_of(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
  if (value.is_number_float()) {
    const double number = value.get<double>();
    const bool is_whole = number == std::floor(number) && std::fabs(number) < 1e15;
    return is_whole ? fmt::format("{:.0f}", number) : fmt::format("{}", number);
  }
  return value.dump();
}

bool is_auto(const Json& value) { return value.is_string() && value == "auto"; }

// Returns a boolean, which DeepSpeed also takes as a string or a number; none for any other value.
std::optional<bool> truth_of(const Json& value) {
  const std::string text = text_of(value);
  if (text == "true" || text == "True" || text == "1") return true;
  if (text == "false" || text == "False" || text == "0") return false;
  return std::nullopt;
}

// The file's values by their paths, and the notes on keys that set nothing.
class DsKeys {
 public:
  explicit DsKeys(const std::string& path) : path_(path) {}

  void read(const Json& object, const std::string& prefix) {
    for (const auto& [name, value] : object.items()) {
      const std::string at = prefix.empty() ? name : prefix + "." + name;
      if (take_block(at, value)) continue;
      if (value.is_object()) {
        read(value, at);
      } else if (!value.is_null()) {
        take(at, value);
      }
    }
  }

  // Returns the value at a path, and marks it as used. Null if there is none, or if it is "auto".
  const Json* find(const std::string& at) {
    const auto found = values_.find(at);
    if (found == values_.end()) return nullptr;
    unused_.erase(at);
    return &found->second;
  }

  bool truth(const std::string& at, const Json& value) const {
    const std::optional<bool> truth = truth_of(value);
    if (truth.has_value()) return *truth;
    throw ConfigError(fmt::format("{} is {}", where(at), value.dump()), "give true or false");
  }

  bool is_auto_at(const std::string& at) const {
    return std::ranges::find(autos_, at) != autos_.end();
  }

  std::string where(const std::string& at) const { return fmt::format("{}: {}", path_, at); }

  void note(const std::string& why, const std::string& at) { noted_[why].push_back(at); }

  // Adds notes about settings that nothing has asked for, such as settings of another type of
  // optimizer.
  void note_unused() {
    for (const std::string& at : unused_) note("nothing in the file uses it", at);
  }

  [[noreturn]] void refuse(const std::string& at, const std::string& remedy) {
    const Json* value = find(at);
    throw ConfigError(value == nullptr ? fmt::format("{} is not supported", where(at))
                                       : fmt::format("{} is {}, which is not supported", where(at),
                                                     value->dump()),
                      remedy);
  }

  std::vector<std::string> notes() const {
    std::vector<std::string> notes;
    for (const auto& [why, keys] : noted_) {
      notes.push_back(fmt::format("{}: {} {} no effect: {}", path_, fmt::join(keys, ", "),
                                  keys.size() == 1 ? "has" : "have", why));
    }
    if (!autos_.empty()) {
      notes.push_back(
          fmt::format("{}: \"auto\" leaves {} to the flags", path_, fmt::join(autos_, ", ")));
    }
    return notes;
  }

 private:
  bool take_block(const std::string& at, const Json& value) {
    const auto blocks = ds_blocks();
    const auto block = std::ranges::find(blocks, at, &DsBlock::path);
    if (block == blocks.end()) return false;
    const bool has_switch = value.is_object() && !block->switch_name.empty();
    const auto on = has_switch ? value.find(block->switch_name) : value.end();
    if (value.is_null() || (has_switch && on == value.end())) return true;
    if (has_switch && !truth(fmt::format("{}.{}", at, block->switch_name), *on)) return true;
    if (block->effect == DsEffect::kRefused) refuse(at, std::string(block->why));
    note(std::string(block->why), at);
    return true;
  }

  void take(const std::string& at, const Json& value) {
    const DsKey& key = known_key(at);
    if (is_auto(value)) {
      if (key.effect == DsEffect::kSetting) autos_.push_back(at);
      return;
    }
    const std::string path(key.path);
    values_[path] = value;
    if (key.effect == DsEffect::kSetting) unused_.insert(path);
    const bool is_usual = !key.usual.empty() && text_of(value) == text_of(Json::parse(key.usual));
    if (is_usual || key.effect == DsEffect::kSetting || key.effect == DsEffect::kHarmless) return;
    if (key.effect == DsEffect::kRefused) refuse(path, std::string(key.why));
    note(std::string(key.why), at);
  }

  // Returns the key at a path. The keys of stage 3 may be written without their prefix.
  const DsKey& known_key(const std::string& at) const {
    constexpr std::string_view kZero = "zero_optimization.";
    const auto keys = ds_keys();
    auto found = std::ranges::find(keys, at, &DsKey::path);
    if (found == keys.end() && at.starts_with(kZero)) {
      const std::string longer = fmt::format("{}stage3_{}", kZero, at.substr(kZero.size()));
      found = std::ranges::find(keys, longer, &DsKey::path);
    }
    if (found != keys.end()) return *found;
    const std::string below = at + ".";
    const auto inside =
        std::ranges::find_if(keys, [&](const DsKey& key) { return key.path.starts_with(below); });
    if (inside != keys.end()) {
      throw ConfigError(fmt::format("{}: {} is an object, with keys like {}", path_, at,
                                    inside->path.substr(below.size())),
                        "write it in braces");
    }
    std::vector<std::string_view> names;
    for (const DsKey& key : keys) names.push_back(key.path);
    for (const DsBlock& block : ds_blocks()) names.push_back(block.path);
    throw ConfigError(fmt::format("{}: unknown key {}", path_, at),
                      fmt::format("did you mean {}?", nearest_name(at, names)));
  }

  const std::string& path_;
  std::map<std::string, Json> values_;
  std::map<std::string, std::vector<std::string>> noted_;  // keys by reason
  std::vector<std::string> autos_;
  std::set<std::string> unused_;  // settings
};

// Turns the keys' values into values of flags.
class DsSettings {
 public:
  DsSettings(DsKeys& keys, std::span<const FlagSpec> flags) : keys_(keys), flags_(flags) {
    result_.values.resize(flags.size());
  }

  DsConfig run() {
    batch();
    precision();
    optimizer();
    scheduler();
    zero();
    ranks();
    take("gradient_clipping", "max-grad-norm");
    take("steps_per_print", "log-every");
    if (is_on("activation_checkpointing.cpu_checkpointing")) {
      set("place-activations", "activation_checkpointing.cpu_checkpointing", {"host"});
    }
    keys_.note_unused();
    result_.notes = keys_.notes();
    return std::move(result_);
  }

 private:
  void set(std::string_view flag, const std::string& at, std::vector<std::string> texts) {
    const auto spec = std::ranges::find(flags_, flag, &FlagSpec::name);
    if (spec == flags_.end()) return;  // the optimizer has no such setting
    result_.values.at(static_cast<std::size_t>(spec - flags_.begin()))
        .emplace(keys_.where(at), std::move(texts));
  }

  void take(const std::string& at, std::string_view flag) {
    if (const Json* value = keys_.find(at)) set(flag, at, {text_of(*value)});
  }

  // Sets a flag from the key, or from DeepSpeed's own default if the key is missing. Does nothing
  // where it is "auto".
  void take_or(const std::string& at, std::string_view flag, const char* usual) {
    if (keys_.is_auto_at(at)) return;
    const Json* value = keys_.find(at);
    set(flag, at, {value == nullptr ? usual : text_of(*value)});
  }

  bool is_on(const std::string& at) {
    const Json* value = keys_.find(at);
    return value != nullptr && keys_.truth(at, *value);
  }

  void batch() {
    take("train_micro_batch_size_per_gpu", "micro-batch-size");
    take("gradient_accumulation_steps", "gradient-accumulation-steps");
    const std::string at = "train_batch_size";
    if (const Json* value = keys_.find(at)) {
      result_.train_batch_size = FlagValue(keys_.where(at), {text_of(*value)}).integer(1);
    }
  }

  void precision() {
    if (is_on("bf16.enabled") && is_on("fp16.enabled")) {
      keys_.refuse("bf16.enabled", "enable only one of bf16 and fp16");
    }
    for (const char* type : {"bf16", "fp16"}) {
      const std::string at = fmt::format("{}.enabled", type);
      if (is_on(at)) set("precision", at, {type});
    }
    const bool is_open = keys_.is_auto_at("bf16.enabled") || keys_.is_auto_at("fp16.enabled");
    if (!is_open && !is_on("bf16.enabled") && !is_on("fp16.enabled")) {
      set("precision", "neither bf16.enabled nor fp16.enabled", {"fp32"});
    }
    if (is_on("bf16.bf16_optimizer_states")) {
      set("optimizer-state-dtype", "bf16.bf16_optimizer_states", {"bf16"});
    }
    for (const char* at : {"communication_data_type", "data_types.grad_accum_dtype"}) {
      take(at, "gradient-dtype");
    }
  }

  void optimizer() {
    const std::string at = "optimizer.type";
    const Json* type = keys_.find(at);
    if (type == nullptr) return;
    std::string name = text_of(*type);
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    if (name == "adam") name = "adamw";
    if (name != "adamw" && name != "lion" && name != "sgd" && name != "muon") {
      keys_.refuse(at, "choose Adam, AdamW, Lion or SGD");
    }
    set("optimizer", at, {name});
    take_or("optimizer.params.lr", "learning-rate", "1e-3");
    take_or("optimizer.params.weight_decay", "weight-decay", "0");
    if (name == "sgd") take_or("optimizer.params.momentum", "sgd-momentum", "0");
    if (name == "adamw") take_or("optimizer.params.eps", "adam-epsilon", "1e-8");
    if (name == "adamw" || name == "lion") betas(name == "lion" ? "lion" : "adam", name == "lion");
  }

  void betas(const std::string& rule, bool is_lion) {
    const std::string at = "optimizer.params.betas";
    if (keys_.is_auto_at(at)) return;
    const Json* value = keys_.find(at);
    std::vector<std::string> texts = {"0.9", is_lion ? "0.99" : "0.999"};
    if (value != nullptr) {
      if (!value->is_array() || value->size() != 2) keys_.refuse(at, "give two numbers");
      texts = {text_of((*value)[0]), text_of((*value)[1])};
    }
    set(rule + "-beta1", at, {texts[0]});
    set(rule + "-beta2", at, {texts[1]});
  }

  void scheduler() {
    const std::string at = "scheduler.type";
    const Json* type = keys_.find(at);
    if (type == nullptr) return;
    const std::string name = text_of(*type);
    const bool decays = name == "WarmupDecayLR";
    const bool is_cosine = name == "WarmupCosineLR";
    if (name != "WarmupLR" && !decays && !is_cosine) {
      keys_.refuse(at, "choose WarmupLR, WarmupDecayLR or WarmupCosineLR");
    }
    set("lr-scheduler-type", at, {decays ? "linear" : is_cosine ? "cosine" : "constant"});
    if (!is_cosine) take_or("scheduler.params.warmup_max_lr", "learning-rate", "1e-3");
    take_or("scheduler.params.warmup_num_steps", "warmup-steps", "1000");
    take("scheduler.params.total_num_steps", "max-steps");
    if (decays) set("min-learning-rate", at, {"0"});
    const Json* ratio = keys_.find("scheduler.params.cos_min_ratio");
    if (is_cosine) {
      const FlagValue share(keys_.where("scheduler.params.cos_min_ratio"),
                            {ratio == nullptr ? "1e-4" : text_of(*ratio)});
      result_.cos_min_ratio = share.number(0);
    }
    const Json* form = keys_.find("scheduler.params.warmup_type");
    const bool is_log = form == nullptr ? !keys_.is_auto_at("scheduler.params.warmup_type")
                                        : text_of(*form) != "linear";
    if (is_log) keys_.note("the warm-up is linear", "scheduler.params.warmup_type");
  }

  // DeepSpeed has 8 bits for weights and 4 for gradients.
  struct Quantized {
    const char* key;
    const char* flag;
    const char* form;
  };
  static constexpr std::array<Quantized, 2> kQuantized = {{
      {"zero_optimization.zero_quantized_weights", "parameter-wire-dtype", "int8"},
      {"zero_optimization.zero_quantized_gradients", "gradient-wire-dtype", "int4"},
  }};

  void zero() {
    take("zero_optimization.stage", "zero-stage");
    for (const char* at :
         {"zero_optimization.cpu_offload_param", "zero_optimization.cpu_offload_params"}) {
      if (is_on(at)) set("place-parameters", at, {"host"});
    }
    if (is_on("zero_optimization.cpu_offload")) {
      set("place-optimizer", "zero_optimization.cpu_offload", {"host"});
    }
    const bool has_hpz = islands("zero_optimization.zero_hpz_partition_size", "hpz", 1);
    const bool has_mics = islands("zero_optimization.mics_shard_size", "hsdp", -1);
    if (has_hpz && has_mics) {
      keys_.refuse("zero_optimization.mics_shard_size",
                   "give it or zero_hpz_partition_size, not both");
    }
    for (const auto& [at, flag, form] : kQuantized) {
      if (is_on(at)) set(flag, at, {form});
    }
    offload("zero_optimization.offload_param", "place-parameters");
    offload("zero_optimization.offload_optimizer", "place-optimizer");
    if (!drives_.empty()) set("nvme", drives_at_, drives_);
  }

  // Returns whether the key asks for islands. Without them it has the number `none`.
  bool islands(const std::string& at, const char* partition, std::int64_t none) {
    const Json* ranks = keys_.find(at);
    if (ranks == nullptr || text_of(*ranks) == std::to_string(none)) return false;
    set("zero-partition", at, {partition});
    set("island-ranks", at, {text_of(*ranks)});
    return true;
  }

  void offload(const std::string& block, std::string_view flag) {
    const std::string at = block + ".device";
    const Json* device = keys_.find(at);
    if (device == nullptr || text_of(*device) == "none") return;
    if (text_of(*device) == "cpu") return set(flag, at, {"host"});
    if (text_of(*device) != "nvme") keys_.refuse(at, "choose none, cpu or nvme");
    set(flag, at, {"nvme"});
    const Json* path = keys_.find(block + ".nvme_path");
    if (path == nullptr) return;  // then --nvme gives it, or is asked for
    drives_at_ = block + ".nvme_path";
    if (std::ranges::find(drives_, text_of(*path)) == drives_.end()) {
      drives_.push_back(text_of(*path));
    }
  }

  void ranks() {
    for (const char* at :
         {"tensor_parallel.autotp_size", "tensor_parallel.tp_size", "tensor_parallel.tp.tp_size"}) {
      const Json* value = keys_.find(at);
      if (value != nullptr && text_of(*value) != "0") take(at, "tensor-parallel");
    }
    take("pipeline.stages", "pipeline-parallel");
  }

  DsKeys& keys_;
  std::span<const FlagSpec> flags_;
  DsConfig result_;
  std::vector<std::string> drives_;
  std::string drives_at_;
};

}  // namespace

DsConfig read_ds_config(const std::string& path, std::span<const FlagSpec> flags) {
  DsKeys keys(path);
  keys.read(parse_ds_text(path, read_ds_text(path)), "");
  return DsSettings(keys, flags).run();
}

}  // namespace terrace
