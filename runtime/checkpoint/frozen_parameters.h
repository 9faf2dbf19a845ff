#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/checkpoint/hf_directory.h"
#include "runtime/checkpoint/listed_file.h"
#include "runtime/model/state_source.h"

// Parameters that do not train are not in checkpoints: these say where they are. docs/checkpoint.md
// has the format.
namespace terrace {

// Where a run's frozen parameters are: in the files of the model directory that it started from, or
// in files that it has stored once beside its checkpoints.
struct FrozenReference {
  std::vector<std::string> parameters;  // by ParameterTensor::name, in the layout's order
  std::string directory;                // of a run's own files: in the run directory
  // Of a model directory: a hash of the bytes of each stored tensor, by
  // ParameterTensor::stored_name.
  std::map<std::string, std::uint64_t> tensors = {};
  std::vector<ListedFile> files = {};  // of a run's own

  bool is_model_directory() const { return files.empty(); }
};

// The parameters of a layout that do not train, by name.
std::vector<std::string> frozen_parameters(const std::vector<UnitLayout>& layout);

// Reads all that is frozen, to hash it. `directory` is where the weights are. Throws IoError.
FrozenReference refer_to_weights(const std::string& directory, const HfDirectory& weights,
                                 const std::vector<UnitLayout>& layout);

// Writes what is frozen, exact, into the folder `frozen` of a run directory: a file of fp32 tensors
// for each unit that has some. Throws IoError.
FrozenReference store_frozen(const std::string& run_dir, const std::vector<UnitLayout>& layout,
                             const StateSource& source, FileSystem& disk = system_files());

// As JSON.
std::string to_json(const FrozenReference& reference);
// Throws std::exception for what to_json() does not make.
FrozenReference parse_frozen_reference(const std::string& json);

// Whose frozen parameters are looked for, and where else they may be.
struct FrozenSearch {
  std::string checkpoint = {};  // a directory, for messages and for files beside it
  // Where the model directory of the reference has no weights any more, or others: another that may
  // have the same. Empty: none.
  std::string model_directory = {};
  // Of several ranks that look together, each verifies a part.
  std::int32_t rank = 0;
  std::int32_t ranks = 1;
};

// Opens what a reference names, and verifies it: hashes of a model directory before this returns,
// files of a run's own as they are read. Throws EnvironmentError where there is nothing,
// CorruptData where it is not what it was; both name the file and a remedy. The reference then
// names the model directory that was verified.
std::unique_ptr<StateSource> open_frozen(FrozenReference& reference, const FrozenSearch& search,
                                         const ModelConfig& config,
                                         FileSystem& disk = system_files());

}  // namespace terrace
