#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/log.h"
#include "runtime/checkpoint/hf_export.h"
#include "runtime/config/train_options.h"
#include "runtime/model/model_config.h"
#include "runtime/tokenizer/tokenizer.h"
#include "runtime/train/run_saver.h"
#include "runtime/train/stop_request.h"
#include "runtime/train/text_continuation.h"
#include "runtime/train/token_sampler.h"
#include "runtime/train/train_console.h"

namespace terrace {

// The answers of a model in training to the prompts of --sample-prompts. They are always the
// likeliest tokens, so only the training changes them. Used by one thread.
class PromptAnswers {
 public:
  struct Setting {
    const TrainOptions& options;
    const ModelConfig& model;
    DType compute_type = DType::kBF16;
    std::int32_t ranks = 1;
    const Tokenizer* tokenizer = nullptr;  // of the data; null: not loaded
    const StopRequest& stop;               // ends an answer
  };
  // Reads the prompts; without --sample-prompts there are none. Borrows what the setting refers to.
  // Throws ConfigError for a file that cannot be read or has no prompts, for a prompt that is too
  // long, where no tokenizer is known, and for several ranks; CorruptData.
  PromptAnswers(const Setting& setting, Log& log);

  // Returns the part of `room_bytes` of memory that is left beside the model, which is held whole
  // while it answers. Throws OutOfMemory where there is too little.
  std::size_t room_left(std::size_t room_bytes) const;
  // Keeps the rows of run_dir/samples.jsonl up to `kept_step`. Throws IoError.
  void open_file(const std::string& run_dir, std::int64_t kept_step);
  // Prints the answers of the model after the step, and appends them to the file; not where `stop`
  // asks the run to end. A file that cannot be written is reported to the log. Throws as
  // RunSaver::with_parameters().
  void show(std::int64_t step, RunSaver& saver, TrainConsole& console);

  bool is_empty() const { return prompts_.empty(); }

 private:
  struct Prompt {
    std::string text;  // or of a conversation the last question
    std::vector<std::int32_t> ids;
    std::string end = {};  // the text that ends an answer of a conversation; empty: none
  };

  void load_tokenizer();
  void read_prompts();
  Prompt read_prompt(const std::string& line, const std::string& place, bool is_json) const;
  Prompt text_prompt(const std::string& text) const;
  void make_shape();
  void answer(std::int64_t step, FetchParameter fetch, TrainConsole& console);

  const Setting setting_;
  Log& log_;
  std::unique_ptr<Tokenizer> own_tokenizer_;
  const Tokenizer* tokenizer_;
  std::vector<std::int32_t> end_ids_;
  ContinuationRules rules_;
  std::vector<Prompt> prompts_;
  TokenSampler::Shape shape_;
  std::string file_;
};

}  // namespace terrace
