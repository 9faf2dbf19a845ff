#pragma once

#include <vector>

#include "runtime/model/batch_shape.h"
#include "runtime/model/model_config.h"
#include "runtime/model/parameter_layout.h"
#include "runtime/model/unit_graph.h"

// The units of a decoder, written down as layers from the model's options.
namespace terrace {

// What a rank computes of a model.
struct DecoderPart {
  ModelConfig config;              // of this rank's part
  std::vector<UnitLayout> layout;  // likewise
  BatchShape batch;
  DType compute_type = DType::kBF16;
  TensorSplit split;
  std::int64_t first_token = 0;          // of this rank's part of the vocabulary
  std::int64_t smallest_vocabulary = 0;  // of any rank's part
  TensorSharing sharing;

  // What the tokens' rows are multiplied with.
  float embedding_scale() const;
  // Whether something below the unit trains, so that the backward goes on from it.
  bool wants_input_gradient(std::int64_t unit) const;
};

// What a block computes follows from this: blocks that are equal in it have one graph.
struct BlockShape {
  LayerOptions options;
  const UnitLayout* layout = nullptr;  // one of the part's
  bool has_backward_below = true;      // DecoderPart::wants_input_gradient()

  bool operator==(const BlockShape& other) const;
};

// Its forward; the backward, of all micro-batches at once, is UnitCompute's.
UnitGraph embedding_graph(const DecoderPart& part);
UnitGraph block_graph(const DecoderPart& part, const BlockShape& block);
// Norm, head and loss.
UnitGraph head_graph(const DecoderPart& part);

}  // namespace terrace
