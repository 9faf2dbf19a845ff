#include "runtime/train/data_defaults.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "runtime/checkpoint/hf_weight_files.h"
#include "runtime/config/check_options.h"
#include "runtime/data/data_files.h"

namespace terrace {
namespace {

bool names_steps(const BatchOptions& batch) {
  return batch.max_steps > 0 || batch.num_train_epochs.has_value();
}

ConfigError steps_are_missing() {
  return {"neither --max-steps nor --num-train-epochs is given", "give one of them"};
}

bool may_be_json(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored) || holds_json_documents(path);
}

}  // namespace

void check_steps_are_named(const TrainOptions& options) {
  if (names_steps(options.batch)) return;
  const bool is_jsonl = options.data.data_format == "jsonl";
  const bool is_auto = options.data.data_format == "auto";
  if (is_jsonl || (is_auto && std::ranges::all_of(options.data.data, may_be_json))) return;
  throw steps_are_missing();
}

std::string choose_by_data(const ModelConfig& model, const Dataset& data,
                           const DocumentCounts& counts, TrainOptions& options) {
  // Token files beside them are not counted, and may hold anything.
  const bool is_all_counted = counts.documents > 0 && counts.tokens >= data.all_tokens();
  const bool are_conversations = is_all_counted && counts.conversations == counts.documents;
  const bool are_answers =
      is_all_counted && counts.conversations + counts.prompts == counts.documents;
  std::vector<std::string> chosen;
  if (options.batch.sequence_length == 0 && data.chose_sequence_length()) {
    options.batch.sequence_length = data.sequence_length();
    chosen.push_back(
        fmt::format("--sequence-length {} (the length that 95 % of the documents fit, "
                    "at most {})",
                    data.sequence_length(), std::min(model.positions, kLongestChosenLength)));
  }
  if (!names_steps(options.batch)) {
    if (!are_conversations) throw steps_are_missing();
    options.batch.num_train_epochs = 3;
    chosen.emplace_back("--num-train-epochs 3 (conversations)");
  }
  const bool has_weights =
      options.model.init != InitChoice::kRandom && has_hf_weights(options.model.model);
  if (are_answers && has_weights && !options.optimizer.names_learning_rate) {
    const bool is_adapter = model.adapter.is_there();
    options.optimizer.learning_rate = is_adapter ? 2e-4 : 1e-5;
    chosen.push_back(fmt::format("--learning-rate {} (tuning of {})", is_adapter ? "2e-4" : "1e-5",
                                 is_adapter ? "an adapter" : "loaded weights"));
  }
  check_learning_rate(options.optimizer);
  return chosen.empty() ? "" : fmt::format("chosen by the data: {}\n", fmt::join(chosen, ", "));
}

std::vector<std::string> doubts_of_choices(const TrainOptions& options, const Dataset& data,
                                           std::int64_t total_samples) {
  constexpr double kMuchPadding = 0.5;
  constexpr double kManyEpochs = 5;
  std::vector<std::string> doubts;
  if (data.packing() == Packing::kWindows) return doubts;
  if (const PackingCounts* const counts = data.packing_counts()) {
    const double rows = static_cast<double>(counts->sequences * data.sequence_length());
    const double padding = rows > 0 ? 1 - static_cast<double>(counts->rows) / rows : 0;
    if (padding > kMuchPadding) {
      doubts.push_back(fmt::format(
          "{:.0f} % of the rows are padding, which costs time and teaches nothing: lower "
          "--sequence-length (now {}){}",
          100 * padding, data.sequence_length(),
          data.packing() == Packing::kNone ? ", or give --packing documents" : ""));
    }
  }
  const double epochs =
      static_cast<double>(total_samples) / static_cast<double>(data.samples_per_epoch());
  if (std::round(epochs) > kManyEpochs) {
    doubts.push_back(fmt::format(
        "the run goes through the data {:.3g} times, and more than five times usually overfits; "
        "lower {}, or give more data",
        epochs, options.batch.max_steps > 0 ? "--max-steps" : "--num-train-epochs"));
  }
  return doubts;
}

}  // namespace terrace
