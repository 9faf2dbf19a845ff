#include <fmt/format.h>

#include <array>
#include <optional>

#include "runtime/config/toml_text.h"
#include "runtime/config/train_flags.h"
#include "runtime/data/data_format.h"

namespace terrace {
namespace {

constexpr auto kInits = std::to_array<std::string_view>({"auto", "weights", "random"});
constexpr auto kLoraTypes = std::to_array<std::string_view>({"lora", "dora"});
constexpr auto kOffOn = std::to_array<std::string_view>({"off", "on"});
constexpr auto kQuantizations = std::to_array<std::string_view>({"none", "nf4", "int8"});
constexpr auto kPackings = std::to_array<std::string_view>({"none", "documents", "windows"});
constexpr auto kLosses = std::to_array<std::string_view>({"completion", "all"});
constexpr auto kDataFormats = std::to_array<std::string_view>(
    {"auto", "text", "llmc", "raw-u16", "raw-u32", "megatron", "jsonl"});

constexpr auto kModelFlags = std::to_array<TrainFlag>({
    {{"model", "Model", "DIR|PRESET",
      "A directory with config.json, or a preset: nano, gpt2-124m, gpt2-xl, llama-1b, llama-3b, "
      "llama-7b, llama-8b, llama-70b"},
     [](TrainOptions& o, const FlagValue& v) { o.model.model = v.name(); },
     [](const TrainOptions& o) { return toml_string(o.model.model); }},
    {{"init", "Model", "weights|random",
      "What parameters start from (weights of a directory, which must have them; random of a "
      "preset)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.model.init = static_cast<InitChoice>(v.choice(kInits));
     },
     [](const TrainOptions& o) {
       return toml_string(kInits.at(static_cast<std::size_t>(o.model.init)));
     }},
    {{"seed", "Model", "N", "Of the initial parameters and the order of samples (1234)"},
     [](TrainOptions& o, const FlagValue& v) { o.model.seed = v.unsigned_integer(); },
     [](const TrainOptions& o) { return toml_unsigned(o.model.seed); }},
    {{"ignore-config-keys", "Model", "KEY",
      "Keys of config.json that are not known here and do not change the model", FlagArity::kList},
     [](TrainOptions& o, const FlagValue& v) { o.model.ignored_config_keys = v.texts(); },
     [](const TrainOptions& o) {
       return o.model.ignored_config_keys.empty() ? std::string{}
                                                  : toml_strings(o.model.ignored_config_keys);
     }},
    {{"trainable", "Tuning", "PATTERN",
      "Train the tensors whose Hugging Face names a pattern matches (*, ?, [..]) and freeze the "
      "others: no gradient, no optimizer state, no update (all train)",
      FlagArity::kList},
     [](TrainOptions& o, const FlagValue& v) { o.model.trainable = v.texts(); },
     [](const TrainOptions& o) {
       return o.model.trainable.empty() ? std::string{} : toml_strings(o.model.trainable);
     }},
    {{"lora-rank", "Tuning", "N",
      "Train an adapter of this rank and freeze the model; final/ is the adapter, as PEFT has it "
      "(0: none)"},
     [](TrainOptions& o, const FlagValue& v) {
       const std::int64_t rank = v.integer(0, 1 << 16);
       o.model.lora.rank = rank > 0 ? std::optional(rank) : std::nullopt;
     },
     [](const TrainOptions& o) {
       return o.model.lora.rank ? toml_integer(*o.model.lora.rank) : std::string{};
     }},
    {{"lora-alpha", "Tuning", "X",
      "What an adapter adds is multiplied by alpha / rank (twice the rank)"},
     [](TrainOptions& o, const FlagValue& v) { o.model.lora.alpha = v.positive_number(); },
     [](const TrainOptions& o) {
       return o.model.lora.alpha ? toml_number(*o.model.lora.alpha) : std::string{};
     }},
    {{"lora-targets", "Tuning", "PATTERN",
      "The layers with an adapter: ends of names, such as q_proj, or patterns of names (all linear "
      "layers of the blocks)",
      FlagArity::kList},
     [](TrainOptions& o, const FlagValue& v) { o.model.lora.targets = v.texts(); },
     [](const TrainOptions& o) {
       return o.model.lora.targets.empty() ? std::string{} : toml_strings(o.model.lora.targets);
     }},
    {{"lora-type", "Tuning", "lora|dora",
      "The form of the adapter: dora trains the norms of a matrix's rows apart from their "
      "directions (lora)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.model.lora.has_magnitudes = v.choice(kLoraTypes) == 1;
     },
     [](const TrainOptions& o) {
       const std::optional<bool>& is_dora = o.model.lora.has_magnitudes;
       return is_dora ? toml_string(kLoraTypes.at(*is_dora ? 1 : 0)) : std::string{};
     }},
    {{"lora-rslora", "Tuning", "on|off",
      "Multiply by alpha / sqrt(rank) instead: rank-stabilised (off)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.model.lora.is_rank_stabilized = v.choice(kOffOn) == 1;
     },
     [](const TrainOptions& o) {
       const std::optional<bool>& is_on = o.model.lora.is_rank_stabilized;
       return is_on ? toml_string(kOffOn.at(*is_on ? 1 : 0)) : std::string{};
     }},
    {{"lora-dropout", "Tuning", "P", "0; dropout is not built yet (0)"},
     [](TrainOptions&, const FlagValue& v) {
       if (v.fraction() > 0) v.not_built("leave it out for 0");
     },
     [](const TrainOptions&) { return std::string{}; }},
    {{"adapter", "Tuning", "DIR",
      "Go on from an adapter as PEFT saves it: its rank, alpha and layers"},
     [](TrainOptions& o, const FlagValue& v) { o.model.lora.adapter = v.name(); },
     [](const TrainOptions& o) {
       return o.model.lora.adapter.empty() ? std::string{} : toml_string(o.model.lora.adapter);
     }},
    {{"base-quantization", "Tuning", "none|nf4|int8",
      "Keep the matrices of the blocks under an adapter in 4 or 8 bits a number (none)"},
     [](TrainOptions& o, const FlagValue& v) {
       const std::size_t choice = v.choice(kQuantizations);
       o.model.base_quantization.reset();
       if (choice > 0) o.model.base_quantization = static_cast<QuantizedForm>(choice - 1);
     },
     [](const TrainOptions& o) {
       const std::optional<QuantizedForm>& form = o.model.base_quantization;
       return form ? toml_string(kQuantizations.at(static_cast<std::size_t>(*form) + 1))
                   : std::string{};
     }},

    {{"data", "Data", "PATH", "Files or directories to train on", FlagArity::kList},
     [](TrainOptions& o, const FlagValue& v) { o.data.data = v.texts(); },
     [](const TrainOptions& o) { return toml_strings(o.data.data); }},
    {{"data-format", "Data", "auto|text|llmc|raw-u16|raw-u32|megatron|jsonl",
      "What the files hold (auto: as they tell). raw-u16 and raw-u32: ids of 2 or 4 bytes, "
      "little-endian, one after the other, nothing else; megatron: PREFIX of a .bin and an .idx; "
      "jsonl: an object on each line with text, with prompt and completion, or with input_ids and "
      "loss_mask"},
     [](TrainOptions& o, const FlagValue& v) {
       v.choice(kDataFormats);
       parse_data_format(v.text());  // refuses formats that are not built
       o.data.data_format = v.text();
     },
     [](const TrainOptions& o) { return toml_string(o.data.data_format); }},
    {{"data-weights", "Data", "W",
      "A number for each path of --data: samples are drawn from the paths in these proportions "
      "(one path after the other, each token once an epoch)",
      FlagArity::kList},
     [](TrainOptions& o, const FlagValue& v) {
       o.data.data_weights.clear();
       for (const std::string& text : v.texts()) {
         o.data.data_weights.push_back(FlagValue(v.where(), {text}).positive_number());
       }
     },
     [](const TrainOptions& o) {
       std::vector<std::string> weights;
       for (const double weight : o.data.data_weights) weights.push_back(toml_number(weight));
       return weights.empty() ? std::string{} : fmt::format("[{}]", fmt::join(weights, ", "));
     }},
    {{"validation-data", "Data", "[NAME=]PATH",
      "Files or directories to evaluate on. The paths of a name are a set, whose loss is told by "
      "itself; paths without a name are the first set",
      FlagArity::kList},
     [](TrainOptions& o, const FlagValue& v) {
       o.data.validation_data = parse_validation_sets(v.texts());
     },
     [](const TrainOptions& o) {
       return o.data.validation_data.empty() ? std::string{}
                                             : toml_strings(texts_of(o.data.validation_data));
     }},
    {{"validation-fraction", "Data", "F",
      "Without --validation-data: so much of the data's tail is kept for evaluation; 0: none, no "
      "evaluation (0.01)"},
     [](TrainOptions& o, const FlagValue& v) { o.data.validation_fraction = v.fraction(); },
     [](const TrainOptions& o) {
       return o.data.validation_data.empty() ? toml_number(o.data.validation_fraction)
                                             : std::string{};
     }},
    {{"tokenizer", "Data", "auto|bytes|FILE",
      "How text becomes ids, in files and in JSON lines; auto: by the model directory's tokenizer, "
      "as bytes where it has none (auto)"},
     [](TrainOptions& o, const FlagValue& v) { o.data.tokenizer = v.name(); },
     [](const TrainOptions& o) { return toml_string(o.data.tokenizer); }},
    {{"packing", "Data", "none|documents|windows",
      "How documents become sequences: one to a sequence, several that do not see each other, or "
      "windows across them (documents for JSONL, windows for token files and text)"},
     [](TrainOptions& o, const FlagValue& v) {
       v.choice(kPackings);
       o.data.packing = v.text();
     },
     [](const TrainOptions& o) {
       return o.data.packing.empty() ? std::string{} : toml_string(o.data.packing);
     }},
    {{"loss-on", "Data", "completion|all",
      "Which tokens are trained on: where there is a prompt or a mask, what that leaves, or all "
      "(completion)"},
     [](TrainOptions& o, const FlagValue& v) {
       v.choice(kLosses);
       o.data.loss_on = v.text();
     },
     [](const TrainOptions& o) {
       return o.data.loss_on == "completion" ? std::string{} : toml_string(o.data.loss_on);
     }},

    {{"sequence-length", "Batch", "N", "Tokens of a sample (the model's positions)"},
     [](TrainOptions& o, const FlagValue& v) { o.batch.sequence_length = v.integer(1); },
     [](const TrainOptions& o) {
       return o.batch.sequence_length == 0 ? std::string{} : toml_integer(o.batch.sequence_length);
     }},
    {{"micro-batch-size", "Batch", "N", "Samples of a micro-batch, per data-parallel rank (1)"},
     [](TrainOptions& o, const FlagValue& v) { o.batch.micro_batch_size = v.integer(1); },
     [](const TrainOptions& o) { return toml_integer(o.batch.micro_batch_size); }},
    {{"gradient-accumulation-steps", "Batch", "N", "Micro-batches of a step (1)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.batch.gradient_accumulation_steps = v.integer(1, 1'000'000);
     },
     [](const TrainOptions& o) { return toml_integer(o.batch.gradient_accumulation_steps); }},
    {{"max-steps", "Batch", "N",
      "The number of steps, before --num-train-epochs (0: that says it)"},
     [](TrainOptions& o, const FlagValue& v) { o.batch.max_steps = v.integer(0); },
     [](const TrainOptions& o) {
       return o.batch.max_steps == 0 ? std::string{} : toml_integer(o.batch.max_steps);
     }},
    {{"num-train-epochs", "Batch", "X",
      "The number of steps, in passes over the data, where no --max-steps is given"},
     [](TrainOptions& o, const FlagValue& v) {
       const double epochs = v.number(0);
       o.batch.num_train_epochs = epochs > 0 ? std::optional(epochs) : std::nullopt;
     },
     [](const TrainOptions& o) {
       return o.batch.num_train_epochs ? toml_number(*o.batch.num_train_epochs) : std::string{};
     }},
    {{"stop-after-step", "Batch", "N",
      "Save and stop after this step; schedules do not change (0: goes on to the last)"},
     [](TrainOptions& o, const FlagValue& v) {
       const std::int64_t step = v.integer(0);
       o.batch.stop_after_step = step > 0 ? std::optional(step) : std::nullopt;
     },
     [](const TrainOptions& o) {
       return o.batch.stop_after_step ? toml_integer(*o.batch.stop_after_step) : std::string{};
     }},
});

}  // namespace

std::span<const TrainFlag> model_flags() { return kModelFlags; }

}  // namespace terrace
