#include <fmt/format.h>

#include <array>
#include <optional>

#include "runtime/config/accumulation_schedule.h"
#include "runtime/config/toml_text.h"
#include "runtime/config/train_flags.h"
#include "runtime/data/data_format.h"

namespace terrace {
namespace {

constexpr auto kInits = std::to_array<std::string_view>({"auto", "weights", "random"});
constexpr auto kLoraTypes = std::to_array<std::string_view>({"lora", "dora"});
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
      "How parameters are initialised (weights for a directory, which must contain them; random "
      "for a preset)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.model.init = static_cast<InitChoice>(v.choice(kInits));
     },
     [](const TrainOptions& o) {
       return toml_string(kInits.at(static_cast<std::size_t>(o.model.init)));
     }},
    {{"seed", "Model", "N", "Seed of the initial parameters and the order of samples (1234)"},
     [](TrainOptions& o, const FlagValue& v) { o.model.seed = v.unsigned_integer(); },
     [](const TrainOptions& o) { return toml_unsigned(o.model.seed); }},
    {{"ignore-config-keys", "Model", "KEY",
      "Keys of config.json that Terrace does not know and that do not change the model",
      FlagArity::kList},
     [](TrainOptions& o, const FlagValue& v) { o.model.ignored_config_keys = v.texts(); },
     [](const TrainOptions& o) {
       return o.model.ignored_config_keys.empty() ? std::string{}
                                                  : toml_strings(o.model.ignored_config_keys);
     }},
    {{"router-aux-loss-coef", "Model", "X",
      "Coefficient of the loss that balances the experts of a model that has them; 0: off (the "
      "model's router_aux_loss_coef if its output_router_logits is true, else 0)"},
     [](TrainOptions& o, const FlagValue& v) { o.model.router_aux_loss_coef = v.number(0); },
     [](const TrainOptions& o) {
       const std::optional<double>& coefficient = o.model.router_aux_loss_coef;
       return coefficient ? toml_number(*coefficient) : std::string{};
     }},
    {{"router-z-loss-coef", "Model", "X",
      "Coefficient of the loss that keeps the router's logits small; 0: off (0)"},
     [](TrainOptions& o, const FlagValue& v) { o.model.router_z_loss_coef = v.number(0); },
     [](const TrainOptions& o) {
       const std::optional<double>& coefficient = o.model.router_z_loss_coef;
       return coefficient ? toml_number(*coefficient) : std::string{};
     }},
    {{"trainable", "Tuning", "PATTERN",
      "Train only the tensors whose Hugging Face names match a pattern (*, ?, [..]) and freeze the "
      "others: no gradient, no optimizer state, no update (all train). Beside an adapter, train "
      "whole modules with it",
      FlagArity::kList},
     [](TrainOptions& o, const FlagValue& v) { o.model.trainable = v.texts(); },
     [](const TrainOptions& o) {
       return o.model.trainable.empty() ? std::string{} : toml_strings(o.model.trainable);
     }},
    {{"lora-rank", "Tuning", "N",
      "Train an adapter of this rank and freeze the model, except for what --trainable matches; "
      "final/ then holds the adapter in PEFT's format (0: none)"},
     [](TrainOptions& o, const FlagValue& v) {
       const std::int64_t rank = v.integer(0, 1 << 16);
       o.model.lora.rank = rank > 0 ? std::optional(rank) : std::nullopt;
     },
     [](const TrainOptions& o) {
       return o.model.lora.rank ? toml_integer(*o.model.lora.rank) : std::string{};
     }},
    {{"lora-alpha", "Tuning", "X",
      "The adapter's output is multiplied by alpha / rank (twice the rank)"},
     [](TrainOptions& o, const FlagValue& v) { o.model.lora.alpha = v.positive_number(); },
     [](const TrainOptions& o) {
       return o.model.lora.alpha ? toml_number(*o.model.lora.alpha) : std::string{};
     }},
    {{"lora-targets", "Tuning", "PATTERN",
      "The layers that get an adapter: endings of names, such as q_proj, or patterns of names; "
      "experts and routers get none (all-linear: all other linear layers of the blocks)",
      FlagArity::kList},
     [](TrainOptions& o, const FlagValue& v) { o.model.lora.targets = v.texts(); },
     [](const TrainOptions& o) {
       return o.model.lora.targets.empty() ? std::string{} : toml_strings(o.model.lora.targets);
     }},
    {{"lora-type", "Tuning", "lora|dora",
      "The form of the adapter: dora trains the norms of a matrix's rows separately from their "
      "directions (lora)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.model.lora.has_magnitudes = v.choice(kLoraTypes) == 1;
     },
     [](const TrainOptions& o) {
       const std::optional<bool>& is_dora = o.model.lora.has_magnitudes;
       return is_dora ? toml_string(kLoraTypes.at(*is_dora ? 1 : 0)) : std::string{};
     }},
    {{"lora-rslora", "Tuning", "on|off",
      "Multiply by alpha / sqrt(rank) instead: rank-stabilised LoRA (off)"},
     [](TrainOptions& o, const FlagValue& v) { o.model.lora.is_rank_stabilized = v.on_off(); },
     [](const TrainOptions& o) { return toml_on_off(o.model.lora.is_rank_stabilized); }},
    {{"lora-dropout", "Tuning", "P",
      "The probability with which an element of an adapter's input is dropped in training (as in "
      "--adapter, otherwise 0)"},
     [](TrainOptions& o, const FlagValue& v) { o.model.lora.dropout = v.number(0, kDropoutMost); },
     [](const TrainOptions& o) {
       return o.model.lora.dropout ? toml_number(*o.model.lora.dropout) : std::string{};
     }},
    {{"adapter", "Tuning", "DIR",
      "Continue from an adapter saved in PEFT's format: its ranks, alphas, layers and whole "
      "modules "
      "are kept"},
     [](TrainOptions& o, const FlagValue& v) { o.model.lora.adapter = v.name(); },
     [](const TrainOptions& o) {
       return o.model.lora.adapter.empty() ? std::string{} : toml_string(o.model.lora.adapter);
     }},
    {{"base-quantization", "Tuning", "none|nf4|int8",
      "Store the matrices of the blocks under an adapter with 4 or 8 bits per number (none)"},
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
      "Format of the files (auto: detected). raw-u16 and raw-u32: only ids of 2 or 4 bytes, "
      "little-endian, one after the other; megatron: PREFIX of a .bin and an .idx; jsonl: one "
      "object on each line with text, with prompt and completion, or with input_ids and loss_mask"},
     [](TrainOptions& o, const FlagValue& v) {
       v.choice(kDataFormats);
       parse_data_format(v.text());  // refuses formats that are not built
       o.data.data_format = v.text();
     },
     [](const TrainOptions& o) { return toml_string(o.data.data_format); }},
    {{"data-weights", "Data", "W",
      "One number for each path of --data: samples are drawn from the paths in these proportions "
      "(one path after the other, each token once per epoch)",
      FlagArity::kList},
     [](TrainOptions& o, const FlagValue& v) {
       o.data.data_weights.clear();
       for (const std::string& text : v.texts()) {
         o.data.data_weights.push_back(FlagValue(v.where(), {text}).positive_number());
       }
     },
     [](const TrainOptions& o) {
       return o.data.data_weights.empty() ? std::string{} : toml_numbers(o.data.data_weights);
     }},
    {{"validation-data", "Data", "[NAME=]PATH",
      "Files or directories to evaluate on. The paths with the same name form a set with a loss of "
      "its own; paths without a name form the first set",
      FlagArity::kList},
     [](TrainOptions& o, const FlagValue& v) {
       o.data.validation_data = parse_validation_sets(v.texts());
     },
     [](const TrainOptions& o) {
       return o.data.validation_data.empty() ? std::string{}
                                             : toml_strings(texts_of(o.data.validation_data));
     }},
    {{"validation-fraction", "Data", "F",
      "Without --validation-data: the fraction at the end of the data that is kept for evaluation; "
      "0: no evaluation (0.01)"},
     [](TrainOptions& o, const FlagValue& v) { o.data.validation_fraction = v.fraction(); },
     [](const TrainOptions& o) {
       return o.data.validation_data.empty() ? toml_number(o.data.validation_fraction)
                                             : std::string{};
     }},
    {{"tokenizer", "Data", "auto|bytes|FILE",
      "How text, in files and in JSON lines, becomes ids; auto: with the tokenizer in the model "
      "directory, or as bytes if it has none (auto)"},
     [](TrainOptions& o, const FlagValue& v) { o.data.tokenizer = v.name(); },
     [](const TrainOptions& o) { return toml_string(o.data.tokenizer); }},
    {{"chat-template", "Data", "NAME|FILE",
      "The template that turns conversations into text: a file, or chatml, alpaca or the name of a "
      "template of the model (the model's template)"},
     [](TrainOptions& o, const FlagValue& v) { o.data.chat_template = v.name(); },
     [](const TrainOptions& o) {
       return o.data.chat_template.empty() ? std::string{} : toml_string(o.data.chat_template);
     }},
    {{"packing", "Data", "none|documents|windows",
      "How documents become sequences: one per sequence, several that do not attend to each other, "
      "or windows across them (documents for JSONL, windows for token files and text)"},
     [](TrainOptions& o, const FlagValue& v) {
       v.choice(kPackings);
       o.data.packing = v.text();
     },
     [](const TrainOptions& o) {
       return o.data.packing.empty() ? std::string{} : toml_string(o.data.packing);
     }},
    {{"loss-on", "Data", "completion|all",
      "Which tokens are trained on. completion: all except prompts and masked tokens; all: every "
      "token (completion)"},
     [](TrainOptions& o, const FlagValue& v) {
       v.choice(kLosses);
       o.data.loss_on = v.text();
     },
     [](const TrainOptions& o) {
       return o.data.loss_on == "completion" ? std::string{} : toml_string(o.data.loss_on);
     }},

    {{"sequence-length", "Batch", "N",
      "Tokens per sample (for documents the length that 95 % of them fit, at most 4096; for "
      "windows "
      "the number of the model's positions)"},
     [](TrainOptions& o, const FlagValue& v) { o.batch.sequence_length = v.integer(1); },
     [](const TrainOptions& o) {
       return o.batch.sequence_length == 0 ? std::string{} : toml_integer(o.batch.sequence_length);
     }},
    {{"micro-batch-size", "Batch", "N", "Samples per micro-batch on each data-parallel rank (1)"},
     [](TrainOptions& o, const FlagValue& v) { o.batch.micro_batch_size = v.integer(1); },
     [](const TrainOptions& o) { return toml_integer(o.batch.micro_batch_size); }},
    {{"gradient-accumulation-steps", "Batch", "N",
      "Micro-batches of a step on each data-parallel rank; the mean with --rank-shares (1)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.batch.gradient_accumulation_steps = v.integer(1, 1'000'000);
     },
     [](const TrainOptions& o) { return toml_integer(o.batch.gradient_accumulation_steps); }},
    {{"accumulation-schedule", "Batch", "N@STEP,...|auto",
      "N micro-batches of a step on each data-parallel rank from step STEP on: 8@1,16@2001; "
      "replaces --gradient-accumulation-steps. auto: grows to the gradient noise scale, at most to "
      "--gradient-accumulation-steps"},
     [](TrainOptions& o, const FlagValue& v) { read_accumulation_schedule(v, o.batch); },
     [](const TrainOptions& o) { return accumulation_schedule_toml(o.batch); }},
    {{"gradient-noise-scale", "Batch", "",
      "Measure the gradient noise scale, the number of samples from which on larger steps help "
      "little; metrics.jsonl has it",
      FlagArity::kSwitch},
     [](TrainOptions& o, const FlagValue& v) { o.batch.measures_gradient_noise = v.on_off(); },
     [](const TrainOptions& o) { return toml_bool(o.batch.measures_gradient_noise); }},
    {{"max-steps", "Batch", "N",
      "The number of steps; overrides --num-train-epochs (0: --num-train-epochs sets it)"},
     [](TrainOptions& o, const FlagValue& v) { o.batch.max_steps = v.integer(0); },
     [](const TrainOptions& o) {
       return o.batch.max_steps == 0 ? std::string{} : toml_integer(o.batch.max_steps);
     }},
    {{"num-train-epochs", "Batch", "X",
      "The number of passes over the data, if --max-steps is not given"},
     [](TrainOptions& o, const FlagValue& v) {
       const double epochs = v.number(0);
       o.batch.num_train_epochs = epochs > 0 ? std::optional(epochs) : std::nullopt;
     },
     [](const TrainOptions& o) {
       return o.batch.num_train_epochs ? toml_number(*o.batch.num_train_epochs) : std::string{};
     }},
    {{"stop-after-step", "Batch", "N",
      "Save and stop after this step; schedules do not change (0: run to the last step)"},
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
