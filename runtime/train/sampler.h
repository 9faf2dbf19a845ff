#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "base/log.h"
#include "memory/host/host_memory.h"
#include "memory/host/worker_arena.h"
#include "runtime/checkpoint/hf_export.h"
#include "runtime/model/unit_compute.h"

// Continues a text with a trained model, byte by byte. All parameters are in memory at once, and
// every new byte computes the whole window again.
namespace terrace {

struct SampleOptions {
  std::string model_directory;
  std::vector<std::string> ignored_config_keys = {};  // of its config.json
  std::string prompt;                                 // not empty
  std::int64_t max_new_tokens = 200;
  double temperature = 1.0;  // 0: always the likeliest
  std::uint64_t seed = 1234;
  int threads = 0;  // 0: what the process may use
};

// Gives `write` the prompt, once the model is in memory, and then each byte as it is chosen. Throws
// ConfigError for a directory without weights or a vocabulary below 256, OutOfMemory for a model
// that does not fit in memory, CorruptData, NotFinite, IoError, and what `write` throws.
void sample_text(const SampleOptions& options, FunctionRef<void(std::string_view)> write, Log& log);

// A model in memory that tells the next byte.
class ByteSampler {
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
  ByteSampler(const Shape& shape, FetchParameter fetch);

  // Bytes that the model, its activations and its scratch take.
  static std::size_t memory_bytes(const Shape& shape);

  // Logits of the vocabulary for what follows `text`, of which the last window() bytes count. Not
  // empty. Valid until the next call.
  std::span<const float> logits_after(std::string_view text);
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

  ByteSampler(const Shape& shape, const std::vector<UnitLayout>& layout, FetchParameter fetch);
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

// The byte that `logits` of at least 256 ids choose: the likeliest at temperature 0, otherwise
// drawn with the random numbers of (seed, index). Ids past 255 are never chosen. Throws NotFinite.
unsigned char choose_byte(std::span<const float> logits, double temperature, std::uint64_t seed,
                          std::uint64_t index);

}  // namespace terrace
