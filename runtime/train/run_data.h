#pragma once

#include <memory>
#include <vector>

#include "runtime/config/train_options.h"
#include "runtime/data/dataset.h"
#include "runtime/data/json_tokens.h"
#include "runtime/model/model_config.h"
#include "runtime/train/rank_group.h"
#include "runtime/train/train_console.h"

namespace terrace {

// The data of a run, as one rank has it. Documents that come as text are tokenized first, by one
// rank of each host, into files without a name that all ranks of the host read.
class RunData {
 public:
  // `sequence_length`: of a sample. All ranks call it. Throws as Dataset does, and ConfigError
  // where ranks have found different data.
  RunData(const TrainOptions& options, const ModelConfig& model, std::int64_t sequence_length,
          const RankGroup& ranks, TrainConsole& console);

  const Dataset& dataset() const { return *dataset_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  TokenFile tokenize(const std::vector<std::string>& files, std::int64_t vocabulary);
  TokenFile share(const TokenFile& own, const std::vector<std::int64_t>& writers);

  const RankGroup& ranks_;
  TrainConsole& console_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<TokenizedData> written_;                // by this rank
  std::vector<std::unique_ptr<ScratchFile>> opened_;  // of another rank's
  std::unique_ptr<Dataset> dataset_;
};

}  // namespace terrace
