#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "runtime/checkpoint/hf_companions.h"
#include "runtime/checkpoint/hf_export.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/checkpoint/transposed_bands.h"
#include "runtime/model/model_config.h"
#include "runtime/model/state_source.h"

// Adapters as Hugging Face's PEFT saves them: a directory with adapter_config.json and
// adapter_model.safetensors. docs/tuning.md says which parts of them are read.
namespace terrace {

inline constexpr const char* kAdapterConfig = "adapter_config.json";
inline constexpr const char* kAdapterWeights = "adapter_model.safetensors";

// Returns whether a directory has the files of an adapter.
bool is_adapter_directory(const std::string& directory);

// An adapter to read. Reads are thread-safe.
class AdapterDirectory final : public StateSource {
 public:
  // Throws ConfigError, which names the key, for a directory that is no adapter or has a feature
  // that is not built; CorruptData; IoError.
  explicit AdapterDirectory(const std::string& directory);

  const std::string& directory() const { return directory_; }
  // Returns base_model_name_or_path: a directory, or a name on the hub; may be empty.
  const std::string& base_model() const { return base_model_; }
  // Returns what its configuration says; adapted() tells the layers and finds the modules.
  const AdapterOptions& options() const { return options_; }

  // Returns `config` with this adapter on the layers that the file has tensors for, and with its
  // whole modules. Throws ConfigError where a tensor belongs to neither, or one is missing, and
  // where a tied head and its embedding differ.
  ModelConfig adapted(const ModelConfig& config) const;

  // Returns whether the file has a parameter: a part of the adapter or of a whole module.
  bool has(const ParameterTensor& tensor) const;
  // Reads these parameters, for a layout of adapted(). The update rule's slots and all other
  // parameters are zero. Throws CorruptData for values that are not finite, IoError.
  void read(StateField field, const UnitLayout& unit, std::int64_t begin,
            std::span<float> out) const override;
  // Reads elements [begin, begin + out.size()) of one of these parameters.
  void read(const ParameterTensor& tensor, std::int64_t begin, std::span<float> out) const;
  // Reads elements [begin, begin + out.size()) of a tensor of a whole module, in the order of
  // files, by its stored name in the model. Throws as read() does.
  void read_stored(const std::string& stored_name, std::int64_t begin, std::span<float> out) const;

 private:
  std::string config_path() const;
  const SafetensorsTensor* locate(const std::string& stored_name) const;
  void check_shorter_names(const ModelConfig& config, const std::set<std::string>& weights) const;
  void check_whole_modules(const ModelConfig& config) const;
  void check_tensors(const ModelConfig& config) const;
  void check_tensor(const ModelConfig& config, const ParameterTensor& tensor,
                    const SafetensorsTensor* stored) const;
  void check_tied_head(const ModelConfig& config) const;
  void check_finite(const SafetensorsTensor& stored, std::span<const float> values) const;

  std::string directory_;
  std::string base_model_;
  AdapterOptions options_;
  std::unique_ptr<SafetensorsFile> file_;
  std::unique_ptr<TransposedBands> bands_ = std::make_unique<TransposedBands>();
};

// Returns a warning, as a sentence, if an adapter names a model directory of this machine other
// than `base` as its base; empty otherwise.
std::string doubt_about_base(const AdapterDirectory& adapter, const std::string& base);

// Returns the layout with only the parameters that an adapter's file has, by their names in it. A
// tied head is there as another tensor with the embedding's place. Offsets stay.
std::vector<UnitLayout> adapter_layout(const ModelConfig& config,
                                       const std::vector<UnitLayout>& layout);

struct AdapterExport {
  std::string directory;   // made when it is not there
  std::string base_model;  // base_model_name_or_path
  WeightTypes types = {.usual = DType::kF32};
  std::vector<HfCompanion> companions = {};  // are copied into it as they are
};

// Writes a directory that PEFT loads; adapter_config.json last. `config` has the adapter. Throws as
// write_hf_directory() does.
void write_adapter_directory(const AdapterExport& options, const ModelConfig& config,
                             const std::vector<UnitLayout>& layout, FetchParameter fetch);

}  // namespace terrace
