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

namespace terrace {

// A model in memory that tells the next token of a text. It keeps the keys and values of the text
// that it was last asked about, so that only what is new in a text is computed. For one thread.
class TokenSampler {
 public:
  struct Shape {
    ModelConfig config;
    DType compute_type = DType::kBF16;
    std::int64_t positions = 1;  // of the longest text; at most the model's learned ones
    int threads = 1;
    // Rotary embeddings that depend on the length of the sequence have the text's, else that of the
    // longest text.
    bool rope_of_text = false;
  };

  // Fetches every parameter, rounded to the compute type as parameters are. Throws OutOfMemory.
  TokenSampler(const Shape& shape, FetchParameter fetch);
  ~TokenSampler();
  TokenSampler(const TokenSampler&) = delete;
  TokenSampler& operator=(const TokenSampler&) = delete;

  // Bytes that the model, the keys and values and what a computation needs meanwhile take.
  static std::size_t memory_bytes(const Shape& shape);

  // Logits of the vocabulary for what follows the ids: at least one, at most positions() of them,
  // all ids of the model. What they begin with of the ids of the last call is not computed again,
  // unless their length changes how positions are rotated. Valid until the next call.
  std::span<const float> logits_after(std::span<const std::int32_t> ids);
  std::int64_t positions() const { return shape_.positions; }

 private:
  class Pass;

  // Where things lie in the memory that lasts, in bytes.
  struct Plan {
    Plan(const Shape& shape, const std::vector<UnitLayout>& layout);
    std::vector<std::size_t> parameters;  // by unit
    std::size_t constants = 0, logits = 0;
    std::size_t total_bytes = 0;
    std::size_t key_value_bytes = 0;  // of a block; those of all blocks lie in memory of their own
  };

  void load_unit(const UnitLayout& unit, FetchParameter fetch);
  void rotate_as(std::int64_t length);
  Pass& pass_of(std::int64_t rows);
  void compute(std::span<const std::int32_t> ids);
  std::byte* at(std::size_t offset) { return memory_.bytes().data() + offset; }

  const Shape shape_;
  const std::vector<UnitLayout> layout_;
  const Plan plan_;
  const bool follows_text_;  // the rotary tables are those of each text's length
  WorkerArena workers_;
  HostMemory memory_;
  HostMemory key_values_;
  std::unique_ptr<Pass> one_row_;
  std::unique_ptr<Pass> many_rows_;
  Pass* last_pass_ = nullptr;        // has computed the last row that is known
  std::vector<std::int32_t> known_;  // ids whose keys and values are kept
  std::vector<float> frequencies_;   // that these were rotated with
};

}  // namespace terrace
