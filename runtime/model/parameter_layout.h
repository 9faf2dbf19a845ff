#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/base_storage.h"
#include "runtime/model/model_config.h"
#include "runtime/model/stored_elements.h"
#include "runtime/model/tensor_split.h"
#include "runtime/model/unit_elements.h"

// Which parameters each unit has, and where in the unit's flat sequence each lies.
namespace terrace {

// kUniform: in [-init_deviation, init_deviation).
enum class Init : std::uint8_t { kNormal, kUniform, kOnes, kZeros };
// How tensor-parallel ranks share a tensor: by rows (a column-parallel product, the vocabulary), by
// columns (a row-parallel product), or not at all: then every rank has all of it.
enum class TensorCut : std::uint8_t { kReplicated, kRows, kColumns };

// How much a tensor-parallel rank's gradient covers, for a parameter that all ranks have:
// everything; the rank's rows of the micro-batch, where sequence parallelism divides them; the
// rank's heads; the rank's part of the matrix that the parameter is multiplied with. Unless it
// covers everything, the ranks' gradients are added.
enum class GradientShare : std::uint8_t { kAll, kRows, kHeads, kPart };

struct ParameterTensor {
  ParameterKind kind = ParameterKind::kTokenEmbedding;
  std::int32_t expert = 0;  // whose parameter it is, if each expert has one of this kind
  std::string name;  // unique; in checkpoints: as llama calls it, or gpt2 without "transformer."
  // The place in Hugging Face's files: the tensor of this name has `stored_rows` rows there, and
  // this parameter's rows begin at row stored_first_row. Both numbers are for the whole model. If
  // stored_matrices is not 0, equal matrices of that number have the rows, one after the other: the
  // tensor is [stored_matrices, rows, columns].
  std::string stored_name;
  std::int64_t stored_first_row = 0;
  std::int64_t stored_rows = 0;
  std::int64_t stored_matrices = 0;
  // Above 1 for a vector that is fp32 in files and has to be exact in every compute type. Here it
  // is this number of vectors, one after the other. Their sum is the vector of the file. The first
  // is that vector rounded to bf16, and each other one is the rest, rounded to bf16. Three are
  // enough for every number of fp32.
  std::int64_t addends = 1;
  // Set where the two numbers do not say it. They then mean nothing.
  std::optional<StoredElements> stored_elements;
  std::int64_t rows = 0;  // [rows, columns] as Linear stores it: out, in. A vector has 1 column.
  std::int64_t columns = 1;
  TensorCut cut = TensorCut::kReplicated;
  std::int64_t row_groups = 1;  // where rows are cut, a rank has its part of each: q|k|v
  GradientShare gradient = GradientShare::kAll;
  bool is_vector = false;
  std::int64_t offset = 0;         // elements from the unit's start
  bool decay = false;              // weight decay applies: matrices only
  bool trainable = true;           // false: frozen, without gradient or optimizer state
  bool stored_transposed = false;  // on disk [in, out] (gpt2's Conv1D)
  Init init = Init::kNormal;
  float init_deviation = 0.02F;
  float adapter_scale = 1;          // of an adapter's A: the factor of its product (adapter.h)
  std::uint32_t random_stream = 0;  // unique in the model
  TensorSlice slice;                // which elements of the model's tensor these are
  // Set for a frozen matrix that is kept quantised. It takes less of the unit's sequence: its bytes
  // are there, and none of its elements.
  std::optional<QuantizedShape> quantized;
  std::int64_t quantized_elements = 0;  // elements of the sequence that its bytes take

  std::int64_t elements() const { return rows * columns; }
  // Returns the number of elements that it takes in the unit's sequence.
  std::int64_t place_elements() const { return quantized ? quantized_elements : elements(); }
};

// The experts of a unit. They are the last elements of its sequence, one expert after the other.
// Each has its gate, up and down side by side and is padded to whole blocks by itself, as many for
// each rank. So whatever neighbouring experts are moved together, every expert has the same blocks.
struct ExpertLayout {
  std::int64_t count = 0;     // 0: the unit has no experts
  std::int64_t elements = 0;  // of each expert, with its padding
  bool train = false;         // all of them, or none
  bool are_quantized = false;

  std::int64_t all_elements() const { return count * elements; }
};

// The layout of a unit. Tensors lie without gaps, so that q|k|v and gate|up are one matrix each;
// matrices come first. The unit is zero-padded at its end to whole blocks, the same number for each
// rank.
// On a tensor-parallel rank, the tensors that are cut come first. The tensors that all ranks have
// alike follow from a block's start, the norms last. Where a router is among these and trains, the
// vectors that are cut come behind them, from another block's start. Sizes are the same on all
// ranks.
// Tensors that train come first, in this order, and are padded by themselves. The frozen ones
// follow in the same way, the quantised ones first. So gradients and optimizer state belong to the
// front of the sequence. Behind all these are the experts, if the unit has any.
struct UnitLayout {
  UnitKind kind = UnitKind::kBlock;
  std::int64_t index = 0;  // unit number: 0 embedding, 1..layers blocks, layers+1 head
  std::vector<ParameterTensor> tensors;
  std::int64_t elements = 0;         // without the padding at the end
  std::int64_t padded_elements = 0;  // a multiple of ranks * kBlockElements
  std::int64_t frozen_elements = 0;  // the last ones before the experts; also such a multiple
  ExpertLayout experts;
  // The trained elements that all tensor-parallel ranks have alike, and within them those of whose
  // gradient each rank has only a share, such as norms of a rank's rows with sequence parallelism.
  // Empty where there is one rank.
  ElementSpan replicated;
  ElementSpan summed;
  ElementSpan quantized;             // where the quantised matrices are, one after the other
  std::vector<ElementSpan> padding;  // not parameters: zero, and so are their gradients

  // Returns null where the unit has no such parameter.
  const ParameterTensor* find(ParameterKind kind, std::int32_t expert = 0) const;
  // Returns the number of elements that are not of experts.
  std::int64_t shared_elements() const { return padded_elements - experts.all_elements(); }
  // Returns how many of the shared elements have gradients and optimizer state.
  std::int64_t trained_elements() const { return shared_elements() - frozen_elements; }
  bool trains() const { return trained_elements() > 0 || experts.train; }
  // Returns the number of shared elements that weight decay applies to. They come first.
  std::int64_t decayed_elements() const;
  // Returns where the tensors that train are, in order. Neighbours are one span, and padding is in
  // none.
  std::vector<ElementSpan> trained_spans() const;
  // Returns the number of elements of the tensors that train.
  std::int64_t trained_count() const;
};

// Returns the layouts of all units. The tensors of a unit are in the order of ParameterKind:
// matrices, biases, norms. Experts follow each other, each with its gate, up and down. `config`
// says which of them train. `ranks` is the number of ranks that the states may be divided over.
// `tensor` says which part of the model a tensor-parallel rank has. `storage` says how frozen
// matrices of blocks are kept, and check_quantized_parts() must hold for it. Slices refer to the
// model without quantisation.
std::vector<UnitLayout> parameter_layout(const ModelConfig& config, std::int32_t ranks = 1,
                                         const TensorSplit& tensor = TensorSplit(),
                                         const BaseStorage& storage = BaseStorage());

// Returns the number of elements over all units, without padding.
std::int64_t parameter_count(const std::vector<UnitLayout>& layout);

}  // namespace terrace
