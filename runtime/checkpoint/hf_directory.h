#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/log.h"
#include "runtime/checkpoint/hf_export.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/model/model_config.h"
#include "runtime/model/parameter_layout.h"

namespace terrace {

// Which file has which tensor, where there are several.
inline constexpr const char* kHfIndexFile = "model.safetensors.index.json";

// Whether a directory has weights to load: safetensors with or without an index. False for a name
// that is not a directory (a preset). Throws ConfigError for a directory that has only
// pytorch_model*.bin.
bool has_hf_weights(const std::string& directory);

// Why the weights of a directory may mean something else by the ids 0 to 255 than bytes, as a
// sentence; empty where nothing says so.
std::string why_bytes_are_foreign(const std::string& directory, const ModelConfig& config);

// The files of a model directory's tokenizer and of how text is generated, which a model of the
// same ids goes on to need; none of what is not a model's directory. One that cannot be read is
// told to `log`.
std::vector<HfCompanion> read_hf_companions(const std::string& directory, Log& log);

// The weights of a Hugging Face directory, found by the names of a model's parameters. Reads are
// thread-safe.
class HfDirectory {
 public:
  // Opens all shards and checks that every parameter is there in its shape. Tensors the model does
  // not have are told to `log`, known buffers aside. Throws ConfigError for a missing tensor, a
  // wrong shape or a type that cannot be loaded; CorruptData for files that contradict each other;
  // IoError.
  HfDirectory(std::string directory, const ModelConfig& config,
              const std::vector<UnitLayout>& layout, Log& log);

  // Elements [begin, begin + out.size()) of a parameter, in its own layout [rows, columns], as fp32
  // (all of F32, BF16 and F16 are exact in it). A tensor stored transposed is read whole for each
  // call, so ask for all of it, or for large parts. Throws IoError.
  void read(const ParameterTensor& tensor, std::int64_t begin, std::span<float> out) const;

  // A hash of the model's tensors: of the type and shape of each, and of its first, middle and last
  // bytes. Throws IoError.
  std::uint64_t fingerprint() const;

 private:
  struct Place {
    const SafetensorsFile* file = nullptr;
    const SafetensorsTensor* tensor = nullptr;
  };

  void open_indexed();
  void open_file(const std::string& name);
  Place locate(const std::string& name) const;
  void check_tied_head(const ModelConfig& config, Log& log) const;
  void report_unexpected(const ModelConfig& config, Log& log) const;
  void read_transposed(const Place& place, const ParameterTensor& tensor, std::int64_t begin,
                       std::span<float> out) const;

  std::string directory_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::unordered_map<std::string, Place> stored_;      // by the name in the files
  std::unordered_map<std::string, Place> parameters_;  // by ParameterTensor::name
};

}  // namespace terrace
