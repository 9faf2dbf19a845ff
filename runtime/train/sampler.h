#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "base/log.h"
#include "memory/host/host_memory.h"
#include "memory/host/worker_arena.h"
#include "runtime/checkpoint/hf_export.h"
#include "runtime/model/unit_compute.h"

// Continues a text with a trained model, token by token. All parameters are in memory at once, and
// every new token computes the whole window again.
namespace terrace {

struct SampleOptions {
  std::string model_directory;
  std::vector<std::string> ignored_config_keys = {};  // of its config.json
  // auto: the directory's own tokenizer, of a checkpoint that of its run, or bytes where there is
  // none; bytes; or the path of one.
  std::string tokenizer = "auto";
  std::string prompt;  // not empty
  std::int64_t max_new_tokens = 200;
  double temperature = 1.0;  // 0: always the likeliest
  std::uint64_t seed = 1234;
  int threads = 0;  // 0: what the process may use
};

// Gives `write` the prompt, once the model is in memory, and then the text of each token as it is
// chosen, which need not be whole code points; ends early at the tokenizer's end token. The
// tokenizer's beginning stands before the prompt. Throws ConfigError for a directory without
// weights or a vocabulary smaller than the tokenizer's, OutOfMemory for a model that does not fit
// in memory, CorruptData, NotFinite, IoError, and what `write` throws.
void sample_text(const SampleOptions& options, FunctionRef<void(std::string_view)> write, Log& log);

// A model in memory that tells the next token.
class TokenSampler {
 public:
  struct Shape {
    ModelConfig config;
    DType compute_type = DType::kBF16;
    std::int64_t window = 1;  // positions that are computed; at most the model's learned ones
    int threads = 1;
    // Rotary embeddings that depend on the length of the sequence have the text's, else the
    // window's.
    bool rope_of_text = false;
  };

  // Fetches every parameter, rounded to the compute type as parameters are. Throws OutOfMemory.
  TokenSampler(const Shape& shape, FetchParameter fetch);

  // Bytes that the model, its activations and its scratch take.
  static std::size_t memory_bytes(const Shape& shape);

  // Logits of the vocabulary for what follows the ids, of which the last window() count. Not empty,
  // and all are ids of the model. Valid until the next call.
  std::span<const float> logits_after(std::span<const std::int32_t> ids);
  std::int64_t window() const { return body_.batch().positions; }

 private:
  // Where things lie in the memory, in bytes.
  struct Plan {
    Plan(const UnitCompute& body, const UnitCompute& head, int threads);
    std::vector<std::size_t> parameters;  // per unit
    std::size_t constants = 0, tokens = 0, hidden = 0, hidden_out = 0, saved = 0, logits = 0;
    std::size_t workspace = 0, workspace_bytes = 0;
    std::size_t total_bytes = 0;
  };

  TokenSampler(const Shape& shape, const std::vector<UnitLayout>& layout, FetchParameter fetch);
  void load_unit(const UnitLayout& unit, FetchParameter fetch);
  void fill_rope_tables(std::int64_t length);
  std::byte* at(std::size_t offset) { return memory_.bytes().data() + offset; }

  UnitCompute body_;  // the window
  UnitCompute head_;  // its last row
  WorkerArena workers_;
  Plan plan_;
  std::size_t row_bytes_ = 0;  // of hidden states
  std::int64_t vocabulary_ = 0;
  bool follows_text_ = false;  // the rotary tables are made anew for each text
  HostMemory memory_;
};

// The id that the logits choose: the likeliest at temperature 0, otherwise drawn with the random
// numbers of (seed, index). Throws NotFinite.
std::int32_t choose_id(std::span<const float> logits, double temperature, std::uint64_t seed,
                       std::uint64_t index);

}  // namespace terrace
