#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "runtime/chat/conversation_encoder.h"
#include "runtime/checkpoint/hf_companions.h"
#include "runtime/config/train_options.h"
#include "runtime/data/dataset.h"
#include "runtime/data/scratch_tokens.h"
#include "runtime/model/model_config.h"
#include "runtime/train/rank_group.h"
#include "runtime/train/train_console.h"

namespace terrace {

// The data of a run, as one rank has it. Documents that come as text are tokenized first, by one
// rank of each host, into files without a name that all ranks of the host read.
class RunData {
 public:
  struct Request {
    const TrainOptions& options;
    const ModelConfig& model;
    std::int64_t sequence_length = 0;  // of a sample; 0: the data chooses
  };
  // All ranks call it. Throws as Dataset and load_tokenizer() do. Throws ConfigError where ranks
  // have found different data, for a tokenizer whose ids the model does not have, and for text
  // taken as bytes beside ids of a tokenizer.
  RunData(const Request& request, const RankGroup& ranks, TrainConsole& console, Log& log);

  const Dataset& dataset() const { return *dataset_; }
  // Returns the tokenizer of the ids; null where nothing says which tokenizer made them.
  const Tokenizer* tokenizer() const { return tokenizer_.get(); }
  // Returns how many documents came as text, for training and validation.
  const DocumentCounts& counts() const { return counts_; }
  bool has_conversations() const { return counts_.conversations > 0; }
  // Returns the files that go into the result beside the weights (companions_of_run()).
  std::vector<HfCompanion> companions(const TrainOptions& options, bool is_adapter) const;

 private:
  void load_tokenizer_of(const TrainOptions& options, std::int64_t vocabulary);
  TokenFile tokenize(DocumentEncoder::Request request);
  TokenFile share(const TokenFile& own, const std::vector<std::int64_t>& writers);

  const RankGroup& ranks_;
  TrainConsole& console_;
  Log& log_;
  std::string tokenizer_path_;  // empty: bytes
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ConversationEncoder> conversations_;
  std::vector<TokenizedData> written_;                // by this rank
  std::vector<std::unique_ptr<ScratchFile>> opened_;  // files of another rank
  std::unique_ptr<Dataset> dataset_;
  DocumentCounts counts_;
};

}  // namespace terrace
