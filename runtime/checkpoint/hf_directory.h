#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/log.h"
#include "runtime/checkpoint/mxfp4_values.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/checkpoint/transposed_bands.h"
#include "runtime/checkpoint/weight_types.h"
#include "runtime/model/model_config.h"
#include "runtime/model/parameter_layout.h"

namespace terrace {

// Returns, as a sentence, why the ids 0 to 255 may mean something other than bytes to the weights
// of a directory; empty where nothing says so.
std::string why_bytes_are_foreign(const std::string& directory, const ModelConfig& config);

// The weights of a Hugging Face directory, found by the names under which a model's parameters are
// stored: with or without the prefixes "transformer." and "model.". A stored tensor holds the rows
// of one or more parameters. Reads are thread-safe.
class HfDirectory {
 public:
  // Opens all files and checks that every parameter is there in its shape. If there are both
  // model.safetensors and an index, the former is used, as transformers does; if it contradicts the
  // index, both are refused. Tensors that the model does not have are reported to `log`, except
  // known buffers. Throws ConfigError for a directory without weights, a missing tensor, a wrong
  // shape, a type that cannot be loaded, or a head that a tied model would lose; CorruptData for
  // files that contradict each other; IoError.
  HfDirectory(std::string directory, const ModelConfig& config,
              const std::vector<UnitLayout>& layout, Log& log, FileSystem& disk = system_files());

  // Reads elements [begin, begin + out.size()) of a parameter of the whole model, in its own layout
  // [rows, columns], as fp32 (F32, BF16, F16 and MXFP4 are all exact in it). Reads only these
  // elements, or, for a tensor in which they lie apart, the rows around them (TransposedBands).
  // Throws IoError.
  void read(const ParameterTensor& tensor, std::int64_t begin, std::span<float> out) const;

  // Returns a hash of the model's tensors: of the type and shape of each, and of its first, middle
  // and last bytes. Throws IoError.
  std::uint64_t fingerprint() const;
  // Return a hash of all bytes of the tensor that holds the parameters of this stored name, with
  // its type and shape; and the file that it is in. Throw IoError.
  std::uint64_t hash_of(const std::string& stored_name) const;
  const std::string& file_of(const std::string& stored_name) const;
  // Returns the types that the model's parameters have in the files; MXFP4 counts as bf16, in which
  // it is exact. All parameters of one stored tensor have the same type.
  WeightTypes types() const;

 private:
  struct Place {
    const SafetensorsFile* file = nullptr;
    const SafetensorsTensor* tensor = nullptr;
  };

  // A tensor of the model in the files.
  struct StoredTensor {
    Place place;
    Place scales = {};                         // where `place` has the blocks of an Mxfp4Tensor
    std::vector<std::string> parameters = {};  // by ParameterTensor::name: its rows, in order

    bool is_mxfp4() const { return scales.tensor != nullptr; }
    // Returns the tensor, or the two parts of one.
    std::vector<Place> places() const;
    DType dtype() const;
    std::uint64_t elements() const;
  };

  void open(Log& log);
  void open_indexed();
  void open_file(const std::string& name);
  void find_parameters(const std::vector<UnitLayout>& layout);
  Place locate(const std::string& name) const;
  // Returns the tensor of a parameter. Throws ConfigError where it is not there as it should be.
  StoredTensor find_stored(const ParameterTensor& tensor) const;
  static Mxfp4Tensor mxfp4_of(const StoredTensor& stored);
  void check_tied_head(const ModelConfig& config) const;
  void report_unexpected(const ModelConfig& config, Log& log) const;

  std::string directory_;
  FileSystem& disk_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::unordered_map<std::string, Place> stored_;   // by the name in the files
  std::map<std::string, StoredTensor> parameters_;  // by ParameterTensor::stored_name
  std::unique_ptr<TransposedBands> bands_ = std::make_unique<TransposedBands>();
};

}  // namespace terrace
