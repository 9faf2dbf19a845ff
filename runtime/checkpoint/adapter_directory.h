#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/checkpoint/hf_companions.h"
#include "runtime/checkpoint/hf_export.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/model/model_config.h"
#include "runtime/model/state_source.h"

// Adapters as Hugging Face's PEFT saves them: a directory with adapter_config.json and
// adapter_model.safetensors. docs/tuning.md says what of them is read.
namespace terrace {

inline constexpr const char* kAdapterConfig = "adapter_config.json";
inline constexpr const char* kAdapterWeights = "adapter_model.safetensors";

// Whether a directory has the files of an adapter.
bool is_adapter_directory(const std::string& directory);

// An adapter to read. Reads are thread-safe.
class AdapterDirectory final : public StateSource {
 public:
  // Throws ConfigError, naming the key, for what is no adapter or not built; CorruptData; IoError.
  explicit AdapterDirectory(const std::string& directory);

  const std::string& directory() const { return directory_; }
  // base_model_name_or_path: a directory, or a name of the hub; may be empty.
  const std::string& base_model() const { return base_model_; }
  double dropout() const { return dropout_; }
  // Rank, alpha and form; the layers are told by adapted().
  const AdapterOptions& options() const { return options_; }

  // `config` with this adapter on the layers that the file has tensors of. Throws ConfigError where
  // there is a tensor that fits no layer, or one is missing.
  ModelConfig adapted(const ModelConfig& config) const;

  // Of the adapter's parameters, of a layout of adapted(). What the update rule keeps is zero, and
  // so is what is no adapter's. Throws CorruptData for values that are not finite, IoError.
  void read(StateField field, const UnitLayout& unit, std::int64_t begin,
            std::span<float> out) const override;
  // Elements [begin, begin + out.size()) of one of them.
  void read(const ParameterTensor& tensor, std::int64_t begin, std::span<float> out) const;

 private:
  const SafetensorsTensor* locate(const std::string& stored_name) const;
  void check_tensors(const ModelConfig& config) const;

  std::string directory_;
  std::string base_model_;
  double dropout_ = 0;
  AdapterOptions options_;
  std::unique_ptr<SafetensorsFile> file_;
};

// Says, as a sentence, that an adapter names another model directory of this machine as its base
// than `base`; empty where it does not.
std::string doubt_about_base(const AdapterDirectory& adapter, const std::string& base);

// The same layout with the adapters' parameters alone. Offsets stay.
std::vector<UnitLayout> adapter_layout(const std::vector<UnitLayout>& layout);

struct AdapterExport {
  std::string directory;   // made when it is not there
  std::string base_model;  // base_model_name_or_path
  WeightTypes types = {.usual = DType::kF32};
  std::vector<HfCompanion> companions = {};  // go into it as they are
};

// Writes a directory that PEFT loads; adapter_config.json last. `config` has the adapter. Throws as
// write_hf_directory() does.
void write_adapter_directory(const AdapterExport& options, const ModelConfig& config,
                             const std::vector<UnitLayout>& layout, FetchParameter fetch);

}  // namespace terrace
