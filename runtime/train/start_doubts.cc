#include "runtime/train/start_doubts.h"

#include <fmt/format.h>

#include "runtime/checkpoint/hf_directory.h"
#include "runtime/checkpoint/hf_weight_files.h"
#include "runtime/train/train_setup.h"

namespace terrace {

void warn_of(const std::vector<std::string>& doubts, Log& log) {
  for (const std::string& doubt : doubts) log.warning(doubt);
}

std::vector<std::string> doubts_of_data(const TrainOptions& options, const ModelConfig& model,
                                        const Dataset& data) {
  std::vector<std::string> doubts = data.doubts();
  const std::int64_t length = sequence_length_for(options, model);
  if (length > model.positions) {
    doubts.push_back(fmt::format(
        "--sequence-length {} is more than the {} positions that {} was made for "
        "(max_position_embeddings): rotary embeddings extend to distances that it has not learned",
        length, model.positions, model.name));
  }
  const bool has_weights =
      options.model.init != InitChoice::kRandom && has_hf_weights(options.model.model);
  if (model.adapter.is_there() && !has_weights && options.run.resume == "none") {
    doubts.emplace_back(
        "the adapter is trained on random weights that no other program has: final/ will be useful "
        "for measurements only");
  }
  return doubts;
}

std::vector<std::string> doubts_of_weights(const TrainOptions& options, const ModelConfig& model,
                                           const Dataset& data) {
  std::vector<std::string> doubts;
  const std::string foreign = why_bytes_are_foreign(options.model.model, model);
  if (data.is_text() && !foreign.empty()) {
    doubts.push_back(
        foreign +
        ". --tokenizer FILE converts text to ids; for files of ids give --data-format llmc, "
        "raw-u16 or raw-u32");
  }
  if (!model.unused_dropout.empty()) {
    doubts.push_back(fmt::format("{}/config.json has {}: the model is trained without this dropout",
                                 options.model.model, model.unused_dropout));
  }
  return doubts;
}

std::string doubt_of_no_targets(std::int64_t step) {
  return fmt::format(
      "step {}: its samples have no token to train on, so its loss and gradient are 0; give more "
      "samples per step, --packing documents, which drops such documents, or --loss-on all. "
      "Further steps of this kind are not reported",
      step);
}

}  // namespace terrace
