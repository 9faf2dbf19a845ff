#pragma once

#include <string>
#include <vector>

#include "base/log.h"
#include "runtime/config/train_options.h"
#include "runtime/data/dataset.h"
#include "runtime/model/model_config.h"

// Doubts about a run's input that do not keep the run from starting. Each doubt is a sentence.
namespace terrace {

// Tells the log of doubts.
void warn_of(const std::vector<std::string>& doubts, Log& log);
// Returns doubts about the data, and about samples that are longer than the model was made for.
std::vector<std::string> doubts_of_data(const TrainOptions& options, const ModelConfig& model,
                                        const Dataset& data);
// Returns doubts about the weights that the run starts from.
std::vector<std::string> doubts_of_weights(const TrainOptions& options, const ModelConfig& model,
                                           const Dataset& data);

// Returns the doubt about a step in which no target is trained on, for the first such step of a
// run.
std::string doubt_of_no_targets(std::int64_t step);

}  // namespace terrace
