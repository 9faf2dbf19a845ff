#include <array>
#include <limits>

#include "runtime/config/toml_text.h"
#include "runtime/config/train_flags.h"

namespace terrace {
namespace {

constexpr auto kOptimizers = std::to_array<std::string_view>({"adamw", "lion", "sgd", "muon"});
constexpr auto kSchedulers = std::to_array<std::string_view>({"cosine", "linear", "constant"});
constexpr auto kStateTypes = std::to_array<std::string_view>({"fp32", "bf16", "int8"});
constexpr auto kMasters = std::to_array<std::string_view>({"auto", "split", "fp32"});
constexpr auto kGradientTypes = std::to_array<std::string_view>({"fp32", "bf16"});
// Where Precision has them.
constexpr auto kPrecisions = std::to_array<std::string_view>({"bf16", "fp32", "fp16"});

// What was read of the flag, where the update can take it as fp32.
double fp32_number(const FlagValue& v, double number) {
  if (number > std::numeric_limits<float>::max()) v.refuse("more than fp32 has", "lower it");
  if (number > 0 && static_cast<float>(number) == 0) {
    v.refuse("less than fp32 has", "give 1e-45 or more");
  }
  return number;
}

constexpr auto kOptimizerFlags = std::to_array<TrainFlag>({
    {{"optimizer", "Optimizer", "adamw|lion|sgd|muon",
      "The rule of the update (adamw); lion, sgd and muon are not built yet"},
     [](TrainOptions&, const FlagValue& v) { v.accept_only("adamw", kOptimizers); },
     [](const TrainOptions&) { return toml_string("adamw"); }},
    {{"learning-rate", "Optimizer", "X", "The highest learning rate (3e-4)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.optimizer.learning_rate = fp32_number(v, v.number(0));
     },
     [](const TrainOptions& o) { return toml_number(o.optimizer.learning_rate); }},
    {{"min-learning-rate", "Optimizer", "X",
      "What the schedule ends at (a tenth of --learning-rate)"},
     [](TrainOptions& o, const FlagValue& v) { o.optimizer.min_learning_rate = v.number(0); },
     [](const TrainOptions& o) {
       return o.optimizer.min_learning_rate ? toml_number(*o.optimizer.min_learning_rate)
                                            : std::string{};
     }},
    {{"warmup-steps", "Optimizer", "N", "Steps of linear growth to --learning-rate (0)"},
     [](TrainOptions& o, const FlagValue& v) { o.optimizer.warmup_steps = v.integer(0); },
     [](const TrainOptions& o) { return toml_integer(o.optimizer.warmup_steps); }},
    {{"lr-scheduler-type", "Optimizer", "cosine|linear|constant",
      "How the learning rate falls after the warmup (cosine)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.optimizer.lr_scheduler_type = static_cast<LrSchedulerType>(v.choice(kSchedulers));
     },
     [](const TrainOptions& o) {
       return toml_string(kSchedulers.at(static_cast<std::size_t>(o.optimizer.lr_scheduler_type)));
     }},
    {{"weight-decay", "Optimizer", "X", "Of matrices only (0.1)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.optimizer.weight_decay = fp32_number(v, v.number(0));
     },
     [](const TrainOptions& o) { return toml_number(o.optimizer.weight_decay); }},
    {{"adam-beta1", "Optimizer", "X", "Decay of the first moment (0.9)"},
     [](TrainOptions& o, const FlagValue& v) { o.optimizer.adam_beta1 = v.fraction(); },
     [](const TrainOptions& o) { return toml_number(o.optimizer.adam_beta1); }},
    {{"adam-beta2", "Optimizer", "X", "Decay of the second moment (0.95)"},
     [](TrainOptions& o, const FlagValue& v) { o.optimizer.adam_beta2 = v.fraction(); },
     [](const TrainOptions& o) { return toml_number(o.optimizer.adam_beta2); }},
    {{"adam-epsilon", "Optimizer", "X", "Added to the root of the second moment (1e-8)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.optimizer.adam_epsilon = fp32_number(v, v.positive_number());
     },
     [](const TrainOptions& o) { return toml_number(o.optimizer.adam_epsilon); }},
    {{"max-grad-norm", "Optimizer", "X", "Gradients are clipped to this norm; 0: off (1.0)"},
     [](TrainOptions& o, const FlagValue& v) { o.optimizer.max_grad_norm = v.number(0); },
     [](const TrainOptions& o) { return toml_number(o.optimizer.max_grad_norm); }},
    {{"optimizer-state-dtype", "Optimizer", "fp32|bf16|int8",
      "Type of the moments; bf16 and int8 are rounded at random (fp32)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.optimizer.optimizer_state_dtype = static_cast<MomentChoice>(v.choice(kStateTypes));
     },
     [](const TrainOptions& o) {
       return toml_string(
           kStateTypes.at(static_cast<std::size_t>(o.optimizer.optimizer_state_dtype)));
     }},
    {{"master-weights", "Optimizer", "auto|split|fp32",
      "Form of the fp32 parameters beside narrow ones: the 16 bits that bf16 ones lack, or whole "
      "(auto: split beside bf16)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.optimizer.master_weights = static_cast<MasterChoice>(v.choice(kMasters));
     },
     [](const TrainOptions& o) {
       return toml_string(kMasters.at(static_cast<std::size_t>(o.optimizer.master_weights)));
     }},
    {{"gradient-dtype", "Optimizer", "fp32|bf16",
      "Type that gradients are rounded to before ranks add them, and after (fp32)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.optimizer.gradient_dtype = static_cast<GradientChoice>(v.choice(kGradientTypes));
     },
     [](const TrainOptions& o) {
       return toml_string(kGradientTypes.at(static_cast<std::size_t>(o.optimizer.gradient_dtype)));
     }},

    {{"precision", "Precision", "bf16|fp16|fp32",
      "Type that kernels compute with; fp16, with a loss scale that finds itself, on GPUs only "
      "(bf16)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.precision = static_cast<Precision>(v.choice(kPrecisions));
     },
     [](const TrainOptions& o) {
       return toml_string(kPrecisions.at(static_cast<std::size_t>(o.precision)));
     }},
});

}  // namespace

std::span<const TrainFlag> optimizer_flags() { return kOptimizerFlags; }

}  // namespace terrace
