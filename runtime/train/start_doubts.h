#pragma once

#include <string>
#include <vector>

#include "runtime/config/train_options.h"
#include "runtime/data/dataset.h"
#include "runtime/model/model_config.h"

// What is odd about a run's input and does not keep it from starting. Each doubt is a sentence.
namespace terrace {

// Of the data, and of samples that are longer than the model was made for.
std::vector<std::string> doubts_of_data(const TrainOptions& options, const ModelConfig& model,
                                        const Dataset& data);
// Of weights that the run starts from.
std::vector<std::string> doubts_of_weights(const TrainOptions& options, const ModelConfig& model,
                                           const Dataset& data);

// About a step none of whose targets is trained on, for the first such step of a run.
std::string doubt_of_no_targets(std::int64_t step);

}  // namespace terrace
