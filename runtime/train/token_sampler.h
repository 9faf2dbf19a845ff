#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "memory/host/host_memory.h"
#include "memory/host/worker_arena.h"
#include "runtime/checkpoint/hf_export.h"
#include "runtime/model/model_config.h"
#include "runtime/model/parameter_layout.h"
#include "runtime/train/unit_parameters.h"

namespace terrace {

// Computes the logits of a text's next token. Keeps the keys and values of the text that it was
// last asked about, so that only the new part of a text is computed. For one thread.
class TokenSampler {
 public:
  struct Shape {
    ModelConfig config;
    DType compute_type = DType::kBF16;
    std::int64_t positions = 1;  // of the longest text; at most the model's learned ones
    int threads = 1;
    // Whether rotary embeddings that depend on the length of the sequence use the text's length;
    // otherwise they use the length of the longest text.
    bool rope_of_text = false;
    // The most rows that are computed in one pass through the parameters; further rows of a text
    // take another pass. The rows' hidden states are kept between units.
    std::int64_t rows_of_pass = 512;
    // Whether the turns of the parameters have a reader, from which each expert is read when rows
    // have chosen it, and the embedding's rows where the embedding is not there.
    bool reads_experts = false;
  };

  // Takes parameters in the compute type from `parameters`. Throws OutOfMemory.
  TokenSampler(std::unique_ptr<UnitParameters> parameters, const Shape& shape);
  // Holds the whole model in memory: HeldParameters.
  TokenSampler(const Shape& shape, FetchParameter fetch);
  ~TokenSampler();
  TokenSampler(const TokenSampler&) = delete;
  TokenSampler& operator=(const TokenSampler&) = delete;

  // Returns the bytes that the model, held in memory, and memory_beside() take together.
  static std::size_t memory_bytes(const Shape& shape);
  // The bytes needed beside the parameters.
  struct Memory {
    std::size_t key_values = 0;
    std::size_t computation = 0;  // activations, scratch, rotary tables, logits
    std::size_t total() const { return key_values + computation; }
  };
  static Memory memory_beside(const Shape& shape);

  // Returns the logits of the vocabulary for the token that follows the ids. There are 1 to
  // positions() ids, all of them ids of the model. The beginning that they share with the ids of
  // the last call is not computed again, unless the length of the text changes how positions are
  // rotated. The result is valid until the next call.
  std::span<const float> logits_after(std::span<const std::int32_t> ids);
  std::int64_t positions() const { return shape_.positions; }

 private:
  class Rows;

  // The layout of the memory that outlives a call, in bytes.
  struct Plan {
    Plan(const Shape& shape, const std::vector<UnitLayout>& layout);
    std::size_t constants = 0, logits = 0, hidden = 0;
    // The parameters of an expert, and rows of the embedding, where these are read in a pass.
    std::size_t expert = 0, table = 0;
    std::size_t expert_bytes = 0;
    // The buffers that the parts of a block leave for each other, for all pieces of a pass, and the
    // bytes of a piece.
    std::size_t between = 0, between_bytes = 0;
    std::size_t row_bytes = 0;  // of a hidden state
    std::size_t total_bytes = 0;
    std::size_t key_value_bytes = 0;  // of one block; all blocks' lie in key_values_
  };
  // Rows of a pass that are computed together.
  struct Piece {
    Rows* rows = nullptr;
    std::size_t first = 0;   // of the pass
    std::size_t number = 0;  // of the pass's pieces
    std::span<const std::int32_t> ids;
  };

  void rotate_as(std::int64_t length);
  Rows& rows_of(std::int64_t count);
  std::vector<Piece> pieces_of(std::span<const std::int32_t> ids);
  void look_up(const std::vector<Piece>& pieces, const UnitParameters::Turn& turn);
  void run_block(const std::vector<Piece>& pieces, const UnitParameters::Turn& turn);
  void run_step(const Piece& piece, const UnitParameters::Turn& turn, std::int32_t step);
  bool has_rows(const Piece& piece, std::int32_t unit, std::int32_t expert);
  void read_expert(const UnitParameters::Turn& turn, std::int32_t expert);
  void run_head(const Piece& last, const UnitParameters::Turn& turn);
  void pass(std::span<const std::int32_t> ids, bool wants_logits);
  std::byte* at(std::size_t offset) { return memory_.bytes().data() + offset; }
  std::byte* hidden_of(const Piece& piece) {
    return at(plan_.hidden) + piece.first * plan_.row_bytes;
  }
  std::byte* between_of(const Piece& piece) {
    return at(plan_.between) + piece.number * plan_.between_bytes;
  }

  const Shape shape_;
  const std::vector<UnitLayout> layout_;
  const Plan plan_;
  const bool follows_text_;  // the rotary tables follow each text's length
  WorkerArena workers_;
  HostMemory memory_;
  HostMemory key_values_;
  std::unique_ptr<UnitParameters> parameters_;
  std::unique_ptr<Rows> one_row_;
  std::unique_ptr<Rows> most_rows_;  // made when first used, as some_rows_ is
  std::unique_ptr<Rows> some_rows_;
  std::vector<std::int32_t> known_;  // ids whose keys and values are kept
  std::vector<float> frequencies_;   // that the keys were rotated with
};

}  // namespace terrace
