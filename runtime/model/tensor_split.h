#pragma once

#include <cstdint>

#include "runtime/model/model_config.h"
#include "runtime/model/option_names.h"

// How tensor-parallel ranks share a model (Shoeybi et al. 2019, arXiv:1909.08053): each has some of
// the heads, of the intermediate columns and of the vocabulary. docs/tensor.md explains it.
namespace terrace {

struct TensorSplit {
  std::int32_t ranks = 1;
  std::int32_t rank = 0;
  // Sequence parallelism (Korthikanti et al. 2022, arXiv:2205.05198): each also has its part of the
  // rows of everything between the shared products.
  bool shares_rows = false;

  // A rank's part of so many; the last rank's may be short of some.
  std::int64_t part_of(std::int64_t count) const { return (count + ranks - 1) / ranks; }
};

// Which elements of a tensor of the model a rank has: of runs of elements that lie side by side,
// the first to the last rank's, again and again. Elements past the end of the model's tensor are
// padding.
struct TensorSlice {
  std::int64_t whole_offset = 0;  // of the model's tensor, in the unit's flat sequence
  std::int64_t whole_elements = 0;
  std::int64_t runs = 1;
  std::int64_t run = 0;    // elements
  std::int32_t ranks = 1;  // 1 too where all ranks have the tensor
  std::int32_t rank = 0;

  // Of a rank's element, the number in the model's tensor.
  std::int64_t whole_of(std::int64_t element, std::int32_t of_rank) const {
    return (element / run * ranks + of_rank) * run + element % run;
  }
  // How many of a rank's elements come before one of the model's tensor. So [begin, end) of the
  // latter are [before(begin), before(end)) of each rank.
  std::int64_t before(std::int64_t whole, std::int32_t of_rank) const;
  // Those that are no padding.
  std::int64_t elements_of(std::int32_t of_rank) const { return before(whole_elements, of_rank); }
};

// Throws ConfigError, naming the number and a remedy, where the ranks cannot share the model, or
// the `rows` of a micro-batch.
void check_tensor_split(const ModelConfig& config, std::int64_t rows, const TensorSplit& split,
                        OptionNames name_of_option = field_of_option);

// The model as one of the ranks has it: with its heads, intermediate columns and vocabulary, the
// latter without padding. The width is the model's.
ModelConfig config_of_part(const ModelConfig& config, const TensorSplit& split);
// The first token of the rank's part of the vocabulary.
std::int64_t first_token(const ModelConfig& config, const TensorSplit& split);

}  // namespace terrace
