#pragma once

#include <vector>

#include "runtime/model/batch_shape.h"
#include "runtime/model/model_config.h"
#include "runtime/model/parameter_layout.h"
#include "runtime/model/unit_graph.h"

// The units of a decoder, written down as layers from the model's options.
namespace terrace {

// The part of a model that a rank computes.
struct DecoderPart {
  ModelConfig config;              // of this rank's part
  std::vector<UnitLayout> layout;  // of the same part
  BatchShape batch;
  DType compute_type = DType::kBF16;
  TensorSplit split;
  std::uint64_t dropout_key = 0;         // of the random words (dropout.h)
  std::int64_t first_token = 0;          // of this rank's part of the vocabulary
  std::int64_t smallest_vocabulary = 0;  // of any rank's part
  TensorSharing sharing;
  // How many neighbouring experts of a layer are one group of parameters. 0: all are in the unit's
  // own group, which suits units that compute without training.
  std::int64_t experts_per_group = 0;

  // Returns the factor that the tokens' rows are multiplied with.
  float embedding_scale() const;
  // Returns whether something below the unit trains, so that the backward goes on below it.
  bool wants_input_gradient(std::int64_t unit) const;
};

// Everything that decides what a block computes. Blocks that are equal in it share one graph.
struct BlockShape {
  LayerOptions options;
  const UnitLayout* layout = nullptr;  // one of DecoderPart::layout
  bool has_backward_below = true;      // DecoderPart::wants_input_gradient()

  bool operator==(const BlockShape& other) const;
};

// Returns the graph of the embedding's forward. Its backward, of all micro-batches at once, is in
// UnitCompute.
UnitGraph embedding_graph(const DecoderPart& part);
UnitGraph block_graph(const DecoderPart& part, const BlockShape& block);
// Returns the graph of norm, head and loss.
UnitGraph head_graph(const DecoderPart& part);

}  // namespace terrace
