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
  kRecompute,         // what allows that activations are computed again
  kPrecision,         // followed by the name of a type
  kTensorParallel,    // followed by the number of ranks
  kSequenceParallel,  // followed by "on" or "off"
  kLearningRate,
  kTrainable,     // followed by a pattern
  kNoEvaluation,  // what gives up evaluation
  kBaseQuantization,
};
inline constexpr std::size_t kOptionCount = 15;

// Returns the words by which whoever set the options knows one: "batch.sequences".
using OptionNames = std::string_view (*)(Option option);

// Those of a library's caller: fields of ModelRuntimeOptions (runtime/engine/model_runtime.h), of
// its ModelConfig and of StepBatch.
std::string_view field_of_option(Option option);

}  // namespace terrace
