#pragma once

#include <cstdint>

#include "runtime/model/model_config.h"
#include "runtime/model/option_names.h"

// How tensor-parallel ranks share a model (Shoeybi et al. 2019, arXiv:1909.08053): each has some of
// the heads, of the intermediate columns, also of each expert, and of the vocabulary.
// docs/tensor.md explains it.
namespace terrace {

struct TensorSplit {
  std::int32_t ranks = 1;
  std::int32_t rank = 0;
  // Sequence parallelism (Korthikanti et al. 2022, arXiv:2205.05198): each rank also has its own
  // part of the rows of everything between the shared products.
  bool shares_rows = false;

  // Returns the size of a rank's part of `count` things. The last rank's part may have fewer.
  std::int64_t part_of(std::int64_t count) const { return (count + ranks - 1) / ranks; }
};

// The elements of a tensor of the model that a rank has. The tensor is cut into runs of elements
// that lie side by side. The ranks take the runs in turn, from the first rank to the last, again
// and again. Elements past the end of the model's tensor are padding.
struct TensorSlice {
  std::int64_t whole_offset = 0;  // where the model's tensor begins in the unit's flat sequence
  std::int64_t whole_elements = 0;
  std::int64_t runs = 1;
  std::int64_t run = 0;    // elements
  std::int32_t ranks = 1;  // also 1 where all ranks have the tensor
  std::int32_t rank = 0;

  // Returns the number that a rank's element has in the model's tensor.
  std::int64_t whole_of(std::int64_t element, std::int32_t of_rank) const {
    return (element / run * ranks + of_rank) * run + element % run;
  }
  // Returns how many of a rank's elements come before element `whole` of the model's tensor. So
  // [begin, end) of the model's tensor is [before(begin), before(end)) on each rank.
  std::int64_t before(std::int64_t whole, std::int32_t of_rank) const;
  // Returns the number of a rank's elements that are not padding.
  std::int64_t elements_of(std::int32_t of_rank) const { return before(whole_elements, of_rank); }
};

// Throws ConfigError, naming the number and a remedy, where the ranks cannot share the model, or
// the `rows` of a micro-batch.
void check_tensor_split(const ModelConfig& config, std::int64_t rows, const TensorSplit& split,
                        OptionNames name_of_option = field_of_option);

// Returns the model as one of the ranks has it: with the rank's heads, intermediate columns and
// vocabulary, the latter without padding. The width is the model's.
ModelConfig config_of_part(const ModelConfig& config, const TensorSplit& split);
// Returns the first token of the rank's part of the vocabulary.
std::int64_t first_token(const ModelConfig& config, const TensorSplit& split);

}  // namespace terrace
