#include "runtime/config/train_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <sstream>

#include "base/check.h"
#include "base/error.h"
#include "runtime/config/accumulation_schedule.h"
#include "runtime/config/check_options.h"
#include "runtime/config/config_file.h"
#include "runtime/config/ds_config.h"
#include "runtime/config/run_of_config.h"
#include "runtime/config/toml_text.h"
#include "runtime/config/train_flags.h"

namespace terrace {
namespace {

constexpr CommandSpec kTrainCommand = {
    "terrace train",
    "Trains a model whose state need not fit in memory. Every flag is also a key of the TOML file\n"
    "given by --config, with _ instead of -; flags override keys. Sizes take KiB MiB GiB TiB "
    "(1024)\n"
    "or KB MB GB TB (1000), numbers can be written as 5e8 and 10_000."};
constexpr FlagSpec kDsConfigFlag = {"ds-config", "Run", "FILE",
                                    "A DeepSpeed configuration; flags and keys of --config "
                                    "override it"};
constexpr FlagSpec kConfigFlag = {"config", "Run", "FILE", "A TOML file whose keys are flags"};

// Returns the flags' specs, then the specs of the flags that name files with flags: --ds-config and
// --config.
std::vector<FlagSpec> specs_of(const std::vector<TrainFlag>& flags) {
  std::vector<FlagSpec> specs;
  specs.reserve(flags.size() + 2);
  for (const TrainFlag& flag : flags) specs.push_back(flag.spec);
  specs.push_back(kDsConfigFlag);
  specs.push_back(kConfigFlag);
  return specs;
}

std::string key_of(const FlagSpec& spec) {
  std::string key(spec.name);
  std::replace(key.begin(), key.end(), '-', '_');
  return key;
}

// Pairs of flags that set the same thing in two ways. One of them on the command line overrides the
// other in a file, just as it overrides itself there.
constexpr auto kAlternatives = std::to_array<std::array<std::string_view, 2>>(
    {{"validation-data", "validation-fraction"},
     {"max-steps", "num-train-epochs"},
     {"accumulation-schedule", "gradient-accumulation-steps"}});

using FlagValues = std::vector<std::optional<FlagValue>>;

std::size_t place_of(std::string_view name, const std::vector<FlagSpec>& specs) {
  const auto spec = std::ranges::find(specs, name, &FlagSpec::name);
  TERRACE_CHECK(spec != specs.end());
  return static_cast<std::size_t>(spec - specs.begin());
}

// Drops the file's settings for its optimizer: they do not apply to the optimizer that the command
// line has chosen.
void drop_settings_of_rules(FlagValues& file, const std::vector<TrainFlag>& flags) {
  for (std::size_t i = 0; i < flags.size(); ++i) {
    if (flags[i].hyperparameter != nullptr) file[i].reset();
  }
}

// Returns whether two alternatives belong together: --accumulation-schedule auto takes its largest
// number from the other flag.
bool go_together(std::string_view flag, const std::optional<FlagValue>& value,
                 const std::optional<FlagValue>& in_file) {
  const std::optional<FlagValue>& taken = value ? value : in_file;
  return flag == "accumulation-schedule" && taken && taken->text() == "auto";
}

// Takes from the file the values that the command line does not give.
void add_file(FlagValues& values, FlagValues file, const std::vector<FlagSpec>& specs) {
  for (const auto& [one, other] : kAlternatives) {
    const std::size_t a = place_of(one, specs);
    const std::size_t b = place_of(other, specs);
    if (go_together(one, values[a], file[a])) continue;
    if (values[a]) file[b].reset();
    if (values[b]) file[a].reset();
  }
  for (std::size_t i = 0; i < file.size(); ++i) {
    if (!values[i]) values[i] = std::move(file[i]);
  }
}

// Reads the file of --config, if it is given. A run's config.toml has the directory that it lies in
// as its run directory, wherever that was when the file was written. A number of steps that
// --checkpoint-every auto has chosen stays automatic. Returns a note if the directory was somewhere
// else.
std::string add_config(FlagValues& values, const std::vector<TrainFlag>& flags,
                       const std::vector<FlagSpec>& specs) {
  if (!values.back()) return "";
  const std::string path = values.back()->name();
  FlagValues file = read_config_file(path, std::span(specs).first(flags.size() + 1));
  if (values[place_of("optimizer", specs)]) drop_settings_of_rules(file, flags);
  std::string note;
  const std::size_t place = place_of("run-dir", specs);
  const std::optional<std::string> run = run_of_config(path);
  if (run && !values[place]) {
    const std::string before = file[place] ? file[place]->name() : *run;
    std::error_code ignored;
    const bool is_same = before == *run || std::filesystem::equivalent(before, *run, ignored);
    const std::size_t every = place_of("checkpoint-every", specs);
    if (file[every] && file[every]->text() == fmt::format("{}", automatic_save_steps(*run))) {
      const std::string automatic = "auto:" + file[every]->text();
      file[every] = FlagValue(file[every]->where(), std::vector<std::string>{automatic});
    }
    if (!is_same || !file[place]) {
      file[place].emplace(fmt::format("{}: its directory", path), std::vector<std::string>{*run});
    }
    if (!is_same) {
      note = fmt::format(
          "the run directory is {}, where config.toml is; when the file was written, it was {}, "
          "but nothing is read or written there now",
          *run, before);
    }
  }
  file.resize(values.size());
  add_file(values, std::move(file), specs);
  return note;
}

// Reads --ds-config, if it is given, for the values that nothing else gives. Returns the share of
// the learning rate that a cosine falls to, if only this file gives it.
std::optional<double> add_ds_config(FlagValues& values, const std::vector<TrainFlag>& flags,
                                    const std::vector<FlagSpec>& specs, TrainOptions& options) {
  const auto& named = values[flags.size()];
  if (!named) return std::nullopt;
  const std::string path = named->name();
  DsConfig config = read_ds_config(path, std::span(specs).first(flags.size()));
  if (values[place_of("optimizer", specs)]) drop_settings_of_rules(config.values, flags);
  config.values.resize(values.size());
  add_file(values, std::move(config.values), specs);
  options.run.notes = std::move(config.notes);
  const bool is_open = !values[place_of("min-learning-rate", specs)].has_value();
  const std::optional<double> least_share = is_open ? config.cos_min_ratio : std::nullopt;
  if (!config.train_batch_size.has_value()) return least_share;
  options.batch.global = {
      .samples = *config.train_batch_size,
      .where = fmt::format("{}: train_batch_size", path),
      .has_micro_batch = values[place_of("micro-batch-size", specs)].has_value(),
      .has_accumulation = values[place_of("gradient-accumulation-steps", specs)].has_value()};
  return least_share;
}

// Returns the value of a key in `toml`, made by to_toml(); empty where the key is not set there,
// none where `toml` lacks the key.
std::optional<std::string> line_of(const std::string& toml, const std::string& key) {
  std::istringstream lines(toml);
  const std::string set = key + " = ";
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(set)) return line.substr(set.size());
    if (line == fmt::format("# {} is not set", key)) return "";
  }
  return std::nullopt;
}

void add_difference(const std::string& toml, const TrainOptions& options, const TrainFlag& flag,
                    std::vector<std::string>& differences) {
  const std::string key = key_of(flag.spec);
  const std::optional<std::string> before = line_of(toml, key);
  const std::string now = show_flag(flag, options);
  if (!before.has_value() || *before == now) return;  // an older version may lack the key
  constexpr auto kOrNotSet = [](const std::string& value) {
    return value.empty() ? std::string("not set") : value;
  };
  differences.push_back(fmt::format("{} {} -> {}", key, kOrNotSet(*before), kOrNotSet(now)));
}

// Refuses text that is not UTF-8: it cannot be in config.toml, which is needed to go on with the
// run.
void check_utf8(const FlagValue& value) {
  if (std::ranges::all_of(value.texts(), is_utf8)) return;
  value.refuse("is not UTF-8, but the run's config.toml must be UTF-8",
               "write it in UTF-8; a link can give the file such a name");
}

// Returns the options that flags, and the files that some of them name, set. Adds the names of
// these flags to `given`.
TrainOptions options_of(FlagValues values, CommandUse use, std::vector<std::string_view>& given) {
  const std::vector<TrainFlag> flags = train_flags();
  const std::vector<FlagSpec> specs = specs_of(flags);
  const bool names_run_dir = values[place_of("run-dir", specs)].has_value();
  const std::string moved = add_config(values, flags, specs);
  TrainOptions options;
  const std::optional<double> least_share = add_ds_config(values, flags, specs, options);
  for (std::size_t i = 0; i < flags.size(); ++i) {
    if (!values[i]) continue;
    given.push_back(flags[i].spec.name);
    check_utf8(*values[i]);
    set_flag(flags[i], options, *values[i]);
  }
  OptimizerFlags& optimizer = options.optimizer;
  if (least_share && optimizer.lr_scheduler_type == LrSchedulerType::kCosine) {
    optimizer.min_learning_rate = *least_share * optimizer.learning_rate;
    given.emplace_back("min-learning-rate");
  }
  const auto is_given = [&](std::string_view name) {
    return values[place_of(name, specs)].has_value();
  };
  settle_accumulation(options, is_given);
  check_options(options, use, is_given);
  if (!moved.empty()) options.run.notes.push_back(moved);
  if (values.back() && !names_run_dir && options.run.resume == "auto") {
    refuse_passing_over(values.back()->name(), options.run.run_dir);
  }
  return options;
}

}  // namespace

std::vector<TrainFlag> train_flags() {
  std::vector<TrainFlag> flags;
  const std::vector<TrainFlag> of_optimizer = optimizer_flags();
  const std::vector<TrainFlag> of_tiers = tier_flags();
  for (const auto part :
       {model_flags(), std::span(of_optimizer), std::span(of_tiers), step_flags()}) {
    flags.insert(flags.end(), part.begin(), part.end());
  }
  return flags;
}

TrainFlagReading read_train_flags(const CommandSpec& command, std::span<const FlagSpec> own,
                                  const std::vector<std::string>& arguments) {
  const std::vector<FlagSpec> specs = specs_of(train_flags());
  std::vector<FlagSpec> all = specs;
  all.insert(all.end(), own.begin(), own.end());
  FlagValues values = read_flags(command, all, arguments);
  TrainFlagReading reading;
  reading.own.assign(values.begin() + static_cast<std::ptrdiff_t>(specs.size()), values.end());
  values.resize(specs.size());
  reading.options = options_of(std::move(values), CommandUse::kPlan, reading.given);
  return reading;
}

TrainOptions parse_train_options(const std::vector<std::string>& arguments) {
  std::vector<std::string_view> given;
  return options_of(read_flags(kTrainCommand, specs_of(train_flags()), arguments),
                    CommandUse::kTrain, given);
}

void settle_batch(TrainOptions& options, int ranks) {
  if (!options.batch.global.has_value()) return;
  const GlobalBatch global = *options.batch.global;
  options.batch.global.reset();
  const std::int64_t dp =
      std::max(1, ranks / (options.step.tensor_parallel * options.step.pipeline_parallel));
  std::int64_t& micro = options.batch.micro_batch_size;
  std::int64_t& accumulation = options.batch.gradient_accumulation_steps;
  if (!global.has_micro_batch) {
    micro = global.samples / (accumulation * dp);
  } else if (!global.has_accumulation) {
    accumulation = global.samples / (micro * dp);
  }
  if (micro * accumulation * dp == global.samples) return;
  throw ConfigError(
      fmt::format("{} is {}, but it must be the product of the micro-batch size ({}), the number "
                  "of accumulation steps ({}) and the {} data-parallel ranks",
                  global.where, global.samples,
                  global.has_micro_batch ? fmt::format("{}", micro) : "open",
                  global.has_accumulation ? fmt::format("{}", accumulation) : "1 or open", dp),
      "correct one of them, or start a different number of ranks");
}

std::string train_help() { return flags_help(kTrainCommand, specs_of(train_flags())); }

std::string train_flags_help(const CommandSpec& command, std::span<const FlagSpec> own) {
  std::vector<FlagSpec> all(own.begin(), own.end());
  const std::vector<FlagSpec> specs = specs_of(train_flags());
  all.insert(all.end(), specs.begin(), specs.end());
  return flags_help(command, all);
}

std::string to_toml(const TrainOptions& options) {
  std::string text;
  std::string_view group;
  for (const TrainFlag& flag : train_flags()) {
    if (flag.spec.group != group) {
      text += fmt::format("{}# {}\n", group.empty() ? "" : "\n", flag.spec.group);
      group = flag.spec.group;
    }
    const std::string value = show_flag(flag, options);
    const std::string key = key_of(flag.spec);
    text += value.empty() ? fmt::format("# {} is not set\n", key)
                          : fmt::format("{} = {}\n", key, value);
  }
  return text;
}

std::string to_toml(const TrainOptions& options, std::span<const std::string_view> flags) {
  std::string text;
  for (const TrainFlag& flag : train_flags()) {
    if (std::ranges::count(flags, flag.spec.name) == 0) continue;
    const std::string value = show_flag(flag, options);
    if (!value.empty()) text += fmt::format("{} = {}\n", key_of(flag.spec), value);
  }
  return text;
}

TrainOptions with_absolute_paths(TrainOptions options) {
  const auto make_absolute = [](std::string& path) {
    if (!path.empty()) path = std::filesystem::absolute(path).lexically_normal().string();
  };
  std::error_code ignored;
  const std::filesystem::path model = options.model.model;
  if (std::filesystem::exists(model / "config.json", ignored)) make_absolute(options.model.model);
  for (std::string& path : options.data.data) make_absolute(path);
  for (ValidationSet& set : options.data.validation_data) {
    for (std::string& path : set.paths) make_absolute(path);
  }
  for (NvmeDirectory& drive : options.tiers.nvme) make_absolute(drive.path);
  std::string& tokenizer = options.data.tokenizer;
  if (tokenizer != "auto" && tokenizer != "bytes") make_absolute(tokenizer);
  make_absolute(options.model.lora.adapter);
  make_absolute(options.run.run_dir);
  const std::string& resume = options.run.resume;
  if (resume != "auto" && resume != "none") make_absolute(options.run.resume);
  return options;
}

std::vector<std::string> differing_keys(const std::string& toml, const TrainOptions& options) {
  std::vector<std::string> differing;
  for (const TrainFlag& flag : train_flags()) add_difference(toml, options, flag, differing);
  return differing;
}

std::vector<std::string> changed_keys(const std::string& toml, const TrainOptions& options) {
  constexpr std::array<std::string_view, 6> kGroups = {"Model", "Tuning",    "Data",
                                                       "Batch", "Optimizer", "Precision"};
  constexpr std::array<std::string_view, 2> kSameBits = {"stop-after-step", "master-weights"};
  const TrainOptions absolute = with_absolute_paths(options);
  std::vector<std::string> changed;
  for (const TrainFlag& flag : train_flags()) {
    const bool is_computed =
        std::ranges::count(kGroups, flag.spec.group) != 0 || flag.spec.name == "save-dtype";
    if (!is_computed || std::ranges::count(kSameBits, flag.spec.name) != 0) continue;
    if (line_of(toml, key_of(flag.spec)) == show_flag(flag, absolute)) continue;
    add_difference(toml, options, flag, changed);
  }
  return changed;
}

}  // namespace terrace
