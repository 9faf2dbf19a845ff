#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/log.h"
#include "runtime/chat/conversation_encoder.h"
#include "runtime/checkpoint/adapter_directory.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/hf_directory.h"
#include "runtime/tokenizer/tokenizer.h"

namespace terrace {

// The model in a directory with its weights, and the tokenizer that goes with it. The directory is
// a checkpoint (fp32 weights), a Hugging Face directory, or an adapter, which uses the weights of
// its base.
class SampledModel {
 public:
  struct Source {
    std::string directory;
    std::string adapter = {};  // an adapter over the directory, which is a Hugging Face directory
    std::vector<std::string> ignored_config_keys = {};  // of its config.json
    // auto: the directory's own tokenizer (for a checkpoint, its run's), or bytes where there is
    // none; bytes; or a tokenizer's path.
    std::string tokenizer = "auto";
    std::string named_by = "--model ";  // stands before the directory in messages
  };

  // Throws ConfigError for a directory without weights and for a vocabulary smaller than the
  // tokenizer's; CorruptData, IoError.
  SampledModel(const Source& source, Log& log);

  const Tokenizer& tokenizer() const { return *tokenizer_; }
  // Returns the ids at which a text ends: the tokenizer's end token, and the ids that the files of
  // the model and of its adapter name beside it. None if the tokenizer has no end token.
  const std::vector<std::int32_t>& end_ids() const { return end_ids_; }
  const ModelConfig& config() const { return config_; }
  // Returns where the template of conversations is: the one that `asked` names or, if it is empty,
  // the template of the adapter, of the model or of the checkpoint's run. Returns nothing where
  // there is none.
  std::optional<ChatTemplateChoice> chat_template(const std::string& asked) const;
  // Returns bf16 if all weights are bf16. Other weights, which bf16 does not hold exactly, compute
  // in fp32.
  DType compute_type() const { return compute_type_; }

  // Reads out.size() elements of a parameter, from element `begin` on.
  void read(const UnitLayout& unit, const ParameterTensor& tensor, std::int64_t begin,
            std::span<float> out) const;

 private:
  // The value of --tokenizer, and the directory that auto means.
  struct TokenizerChoice {
    std::string name;
    std::string directory;
    bool doubts_bytes = true;  // nothing says that the ids are bytes
  };

  void open_model(const Source& source, Log& log);
  void take_adapter();
  void check_base(const Source& source) const;
  TokenizerChoice tokenizer_choice(const std::string& asked, Log& log);
  void load_tokenizer_of(const std::string& asked, Log& log);
  [[noreturn]] void refuse_absent() const;
  [[noreturn]] void refuse(const std::string& why) const;

  std::string directory_;
  const std::string named_by_;
  ModelConfig config_;
  DType compute_type_ = DType::kBF16;
  std::unique_ptr<Checkpoint> checkpoint_;  // one of the two
  std::unique_ptr<HfDirectory> weights_;
  std::unique_ptr<AdapterDirectory> adapter_;  // beside the weights of its base
  std::unique_ptr<Tokenizer> tokenizer_;
  std::string tokenizer_directory_;  // the one that auto means
  std::string template_of_run_;      // --chat-template of a checkpoint's run
  std::vector<std::int32_t> end_ids_;
};

}  // namespace terrace
