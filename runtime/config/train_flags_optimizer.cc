#include <fmt/format.h>

#include <array>
#include <limits>
#include <optional>

#include "runtime/config/toml_text.h"
#include "runtime/config/train_flags.h"

namespace terrace {
namespace {

constexpr std::string_view kUnbuiltRule = "muon";
constexpr auto kSchedulers = std::to_array<std::string_view>({"cosine", "linear", "constant"});
constexpr auto kStateTypes = std::to_array<std::string_view>({"fp32", "bf16", "int8"});
constexpr auto kMasters = std::to_array<std::string_view>({"auto", "split", "fp32"});
constexpr auto kGradientTypes = std::to_array<std::string_view>({"fp32", "bf16"});
// In the order of WireForm.
constexpr auto kParameterWires = std::to_array<std::string_view>({"plain", "int8"});
// In the order of Precision.
constexpr auto kPrecisions = std::to_array<std::string_view>({"bf16", "fp32", "fp16"});

const UpdateRule* rule_named(const FlagValue& value) {
  std::vector<std::string_view> names;
  for (const UpdateRule* rule : update_rules()) names.push_back(rule->name);
  names.push_back(kUnbuiltRule);
  const std::size_t chosen = value.choice(names);
  if (chosen == update_rules().size()) value.not_built("use adamw");
  return update_rules()[chosen];
}

// Returns the number read for a flag, if the update can take it as fp32; refuses it otherwise.
double fp32_number(const FlagValue& v, double number) {
  if (number > std::numeric_limits<float>::max())
    v.refuse("larger than the largest fp32 number", "lower it");
  if (number > 0 && static_cast<float>(number) == 0) {
    v.refuse("smaller than the smallest fp32 number", "give 1e-45 or more");
  }
  return number;
}

constexpr auto kOptimizerFlags = std::to_array<TrainFlag>({
    {{"optimizer", "Optimizer", "adamw|lion|sgd|muon",
      "The update rule (adamw); muon is not built yet"},
     [](TrainOptions& o, const FlagValue& v) { o.optimizer.rule = rule_named(v); },
     [](const TrainOptions& o) { return toml_string(o.optimizer.rule->name); }},
    {{"learning-rate", "Optimizer", "X",
      "The peak learning rate (3e-4; where the weights are loaded and the data has conversations "
      "or "
      "prompts: 1e-5, and 2e-4 for adapters)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.optimizer.learning_rate = fp32_number(v, v.number(0));
       o.optimizer.names_learning_rate = true;
     },
     [](const TrainOptions& o) { return toml_number(o.optimizer.learning_rate); }},
    {{"min-learning-rate", "Optimizer", "X",
      "The final learning rate of the schedule (a tenth of --learning-rate)"},
     [](TrainOptions& o, const FlagValue& v) { o.optimizer.min_learning_rate = v.number(0); },
     [](const TrainOptions& o) {
       return o.optimizer.min_learning_rate ? toml_number(*o.optimizer.min_learning_rate)
                                            : std::string{};
     }},
    {{"warmup-steps", "Optimizer", "N", "Steps of linear warmup to --learning-rate (0)"},
     [](TrainOptions& o, const FlagValue& v) { o.optimizer.warmup_steps = v.integer(0); },
     [](const TrainOptions& o) { return toml_integer(o.optimizer.warmup_steps); }},
    {{"warmup-ratio", "Optimizer", "X",
      "The share of all steps in which the learning rate warms up, in place of --warmup-steps (0)"},
     [](TrainOptions& o, const FlagValue& v) { o.optimizer.warmup_ratio = v.fraction(); },
     [](const TrainOptions& o) {
       const double ratio = o.optimizer.warmup_ratio;
       return ratio == 0 ? std::string{} : toml_number(ratio);
     }},
    {{"lr-scheduler-type", "Optimizer", "cosine|linear|constant",
      "How the learning rate falls after the warmup (cosine)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.optimizer.lr_scheduler_type = static_cast<LrSchedulerType>(v.choice(kSchedulers));
     },
     [](const TrainOptions& o) {
       return toml_string(kSchedulers.at(static_cast<std::size_t>(o.optimizer.lr_scheduler_type)));
     }},
    {{"weight-decay", "Optimizer", "X",
      "Weight decay of matrices; other parameters have none (0.1)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.optimizer.weight_decay = fp32_number(v, v.number(0));
     },
     [](const TrainOptions& o) { return toml_number(o.optimizer.weight_decay); }},
    {{"max-grad-norm", "Optimizer", "X", "Gradients are clipped to this norm; 0: off (1.0)"},
     [](TrainOptions& o, const FlagValue& v) { o.optimizer.max_grad_norm = v.number(0); },
     [](const TrainOptions& o) { return toml_number(o.optimizer.max_grad_norm); }},
    {{"optimizer-state-dtype", "Optimizer", "fp32|bf16|int8",
      "Type of the optimizer's moments or momentum; bf16 and int8 are rounded stochastically "
      "(fp32)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.optimizer.optimizer_state_dtype = static_cast<SlotForm>(v.choice(kStateTypes));
     },
     [](const TrainOptions& o) {
       return toml_string(
           kStateTypes.at(static_cast<std::size_t>(o.optimizer.optimizer_state_dtype)));
     }},
    {{"master-weights", "Optimizer", "auto|split|fp32",
      "How fp32 masters of narrow parameters are kept: only the 16 bits that bf16 parameters lack, "
      "or whole (auto: split for bf16)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.optimizer.master_weights = static_cast<MasterChoice>(v.choice(kMasters));
     },
     [](const TrainOptions& o) {
       return toml_string(kMasters.at(static_cast<std::size_t>(o.optimizer.master_weights)));
     }},
    {{"gradient-dtype", "Optimizer", "fp32|bf16",
      "Type that gradients are rounded to, both before ranks add them and after (fp32)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.optimizer.gradient_dtype = static_cast<GradientChoice>(v.choice(kGradientTypes));
     },
     [](const TrainOptions& o) {
       return toml_string(kGradientTypes.at(static_cast<std::size_t>(o.optimizer.gradient_dtype)));
     }},

    {{"precision", "Precision", "bf16|fp16|fp32",
      "Type that kernels compute with; fp16 works on GPUs only and has a dynamic loss scale "
      "(bf16)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.precision = static_cast<Precision>(v.choice(kPrecisions));
     },
     [](const TrainOptions& o) {
       return toml_string(kPrecisions.at(static_cast<std::size_t>(o.precision)));
     }},
    {{"gradient-wire-dtype", "Precision", "plain|int8|int4",
      "Form in which data-parallel ranks send gradients, from ZeRO stage 1 on; int8 and int4 send "
      "fewer bytes and change results slightly (plain)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.step.gradient_wire = static_cast<WireForm>(v.choice(kWireForms));
     },
     [](const TrainOptions& o) { return toml_string(name_of(o.step.gradient_wire)); }},
    {{"parameter-wire-dtype", "Precision", "plain|int8",
      "Form in which data-parallel ranks send parameters that train, with ZeRO stage 3 (plain)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.step.parameter_wire = static_cast<WireForm>(v.choice(kParameterWires));
     },
     [](const TrainOptions& o) { return toml_string(name_of(o.step.parameter_wire)); }},
    {{"error-feedback", "Precision", "on|off",
      "Whether each rank keeps what int8 and int4 lose of its gradients, and adds it to its next "
      "ones: 1 byte per parameter, in any tier (on with int4)"},
     [](TrainOptions& o, const FlagValue& v) { o.step.error_feedback = v.on_off(); },
     [](const TrainOptions& o) { return toml_on_off(o.step.error_feedback); }},
});

// Returns the index of the hyperparameter in the rule; none if it belongs to another rule.
std::optional<std::size_t> number_of(const UpdateRule& rule, const Hyperparameter& hyperparameter) {
  for (std::size_t i = 0; i < rule.hyperparameters.size(); ++i) {
    if (rule.hyperparameters[i].flag == hyperparameter.flag) return i;
  }
  return std::nullopt;
}

void set_hyperparameter(OptimizerFlags& optimizer, const Hyperparameter& hyperparameter,
                        const FlagValue& value) {
  const std::optional<std::size_t> number = number_of(*optimizer.rule, hyperparameter);
  if (!number) {
    value.refuse(fmt::format("not a setting of --optimizer {}", optimizer.rule->name),
                 "leave it out, or choose the optimizer that has this setting");
  }
  optimizer.hyperparameters.at(*number) = hyperparameter.range == Hyperparameter::Range::kFraction
                                              ? value.fraction()
                                              : fp32_number(value, value.positive_number());
}

}  // namespace

double OptimizerFlags::value_of(std::size_t number) const {
  return hyperparameters.at(number).value_or(rule->hyperparameters[number].standard);
}

RuleOptions OptimizerFlags::numbers() const {
  RuleOptions options = {.weight_decay = weight_decay};
  for (std::size_t i = 0; i < rule->hyperparameters.size(); ++i) {
    options.values.at(i) = value_of(i);
  }
  return options;
}

void set_flag(const TrainFlag& flag, TrainOptions& options, const FlagValue& value) {
  if (flag.hyperparameter == nullptr) return flag.set(options, value);
  set_hyperparameter(options.optimizer, *flag.hyperparameter, value);
}

std::string show_flag(const TrainFlag& flag, const TrainOptions& options) {
  if (flag.hyperparameter == nullptr) return flag.show(options);
  const OptimizerFlags& optimizer = options.optimizer;
  const std::optional<std::size_t> number = number_of(*optimizer.rule, *flag.hyperparameter);
  return number ? toml_number(optimizer.value_of(*number)) : std::string();
}

// Returns the table, with the flags of the rules' hyperparameters after the weight decay, which all
// rules have.
std::vector<TrainFlag> optimizer_flags() {
  std::vector<TrainFlag> flags;
  for (const TrainFlag& flag : kOptimizerFlags) {
    flags.push_back(flag);
    if (flag.spec.name != "weight-decay") continue;
    for (const UpdateRule* rule : update_rules()) {
      for (const Hyperparameter& of_rule : rule->hyperparameters) {
        flags.push_back(
            {{of_rule.flag, "Optimizer", "X", of_rule.help}, nullptr, nullptr, &of_rule});
      }
    }
  }
  return flags;
}

}  // namespace terrace
