#pragma once

#include <cstdint>
#include <string_view>

// How messages name what the reader may change. The runtime is a library: a trainer that embeds it
// sets the fields of structs, and the user of a command line writes flags.
namespace terrace {

enum class Option : std::uint8_t {
  kDeviceBudget,
  kHostBudget,
  kNvmeBudget,
  kDrive,  // a directory of the NVMe tier
  kThreads,
  kMicroBatchSize,
  kSequenceLength,
  kRecompute,         // the option that allows recomputing activations
  kPrecision,         // followed by the name of a type
  kTensorParallel,    // followed by the number of ranks
  kSequenceParallel,  // followed by "on" or "off"
  kLearningRate,
  kTrainable,     // followed by a pattern
  kNoEvaluation,  // the option that gives up evaluation
  kBaseQuantization,
  kExpertsPerGroup,     // followed by their number
  kBalanceCoefficient,  // of the routers' balance loss, followed by the number
  kZCoefficient,        // of their z-loss, likewise
  kMicroBatches,        // of a step
  kGradientNoise,       // the option that measures the gradient noise scale
  kGradientWire,        // of gradients between data-parallel ranks, followed by the form
  kParameterWire,       // of parameters, likewise
  kErrorFeedback,       // the option that keeps what the codes of gradients lose
};
inline constexpr std::size_t kOptionCount = 23;

// Returns the words by which the user who set the options knows this one: "batch.sequences".
using OptionNames = std::string_view (*)(Option option);

// Returns the names for a caller of the library: fields of ModelRuntimeOptions
// (runtime/engine/model_runtime.h), of its ModelConfig and of StepBatch.
std::string_view field_of_option(Option option);

}  // namespace terrace
