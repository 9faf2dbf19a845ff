#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/base_storage.h"
#include "runtime/model/model_config.h"
#include "runtime/model/tensor_split.h"
#include "runtime/model/unit_elements.h"

// Which parameters each unit has, and where in the unit's flat sequence each lies.
namespace terrace {

// kUniform: in [-init_deviation, init_deviation).
enum class Init : std::uint8_t { kNormal, kUniform, kOnes, kZeros };
// How tensor-parallel ranks share a tensor: by rows (a column-parallel product, the vocabulary), by
// columns (a row-parallel product), or not: all have it.
enum class TensorCut : std::uint8_t { kReplicated, kRows, kColumns };

// What a tensor-parallel rank's gradient of a parameter that all have covers: everything; its rows
// of the micro-batch, where sequence parallelism divides these; its heads; its part of the matrix
// that the parameter is multiplied with. Unless it is everything, the ranks' gradients are added.
enum class GradientShare : std::uint8_t { kAll, kRows, kHeads, kPart };

struct ParameterTensor {
  ParameterKind kind = ParameterKind::kTokenEmbedding;
  std::string name;  // unique; in checkpoints: as llama calls it, or gpt2 without "transformer."
  // In Hugging Face's files: the tensor of this name has `stored_rows` rows, and from the
  // stored_first_row-th on those of this parameter. Of whole models.
  std::string stored_name;
  std::int64_t stored_first_row = 0;
  std::int64_t stored_rows = 0;
  std::int64_t rows = 0;  // [rows, columns] as Linear stores it: out, in. A vector has 1 column.
  std::int64_t columns = 1;
  TensorCut cut = TensorCut::kReplicated;
  std::int64_t row_groups = 1;  // of each of which, where rows are cut, a rank has its part: q|k|v
  GradientShare gradient = GradientShare::kAll;
  bool is_vector = false;
  std::int64_t offset = 0;         // elements from the unit's start
  bool decay = false;              // weight decay applies: matrices only
  bool trainable = true;           // false: frozen, it is a parameter and nothing else
  bool stored_transposed = false;  // on disk [in, out] (gpt2's Conv1D)
  Init init = Init::kNormal;
  float init_deviation = 0.02F;
  std::uint32_t random_stream = 0;  // unique in the model
  TensorSlice slice;                // which elements of the model's tensor these are
  // A frozen matrix that is kept quantised takes less of the unit's sequence: its bytes, and no
  // element of it is there.
  std::optional<QuantizedShape> quantized;
  std::int64_t quantized_elements = 0;  // of the sequence, that its bytes take

  std::int64_t elements() const { return rows * columns; }
  // Of the unit's sequence.
  std::int64_t place_elements() const { return quantized ? quantized_elements : elements(); }
};

// Tensors lie without gaps, so that q|k|v and gate|up are one matrix each; matrices first. The unit
// is zero-padded at its end to whole blocks, as many for each rank as for any other.
// Of a tensor-parallel rank: first what is cut, then, from a block's start, what all ranks have
// alike, the norms last. Sizes are the same on all ranks.
// Tensors that train come first, in this order, and are padded by themselves; the frozen ones
// follow, likewise. So gradients and optimizer state are those of the front of the sequence. Of the
// frozen ones the quantised ones come first.
struct UnitLayout {
  UnitKind kind = UnitKind::kBlock;
  std::int64_t index = 0;  // unit number: 0 embedding, 1..layers blocks, layers+1 head
  std::vector<ParameterTensor> tensors;
  std::int64_t elements = 0;         // without the padding at the end
  std::int64_t padded_elements = 0;  // a multiple of ranks * kBlockElements
  std::int64_t frozen_elements = 0;  // of these, at the end; such a multiple too
  // What all tensor-parallel ranks have alike of what trains, and in it what each has only a share
  // of the gradient of: norms of a rank's rows with sequence parallelism. None where there is one
  // rank.
  ElementSpan replicated;
  ElementSpan summed;
  ElementSpan quantized;             // what quantised matrices take, one behind the other
  std::vector<ElementSpan> padding;  // no parameters: zero, and so are their gradients

  const ParameterTensor* find(ParameterKind kind) const;  // null: the unit has none
  // What gradients and optimizer state there are of.
  std::int64_t trained_elements() const { return padded_elements - frozen_elements; }
  bool trains() const { return trained_elements() > 0; }
  // Those that weight decay applies to, which come first.
  std::int64_t decayed_elements() const;
  // Where the last tensor that trains ends: the padding behind it is not counted.
  std::int64_t trained_end() const;
};

// The tensors of a unit in the order of ParameterKind: matrices, biases, norms. Which of them train
// is `config`'s to say.
// `ranks` are those that the states may be divided over; `tensor` says which part of the model a
// tensor-parallel rank has; `storage` how frozen matrices of blocks are kept, for which
// check_quantized_parts() must hold. Slices are of the model without quantisation.
std::vector<UnitLayout> parameter_layout(const ModelConfig& config, std::int32_t ranks = 1,
                                         const TensorSplit& tensor = TensorSplit(),
                                         const BaseStorage& storage = BaseStorage());

// Elements without padding, over all units.
std::int64_t parameter_count(const std::vector<UnitLayout>& layout);

}  // namespace terrace
