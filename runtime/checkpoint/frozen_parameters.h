#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/checkpoint/hf_directory.h"
#include "runtime/checkpoint/listed_file.h"
#include "runtime/model/state_source.h"

// References to parameters that do not train. Checkpoints do not contain those, but say where they
// are. docs/checkpoint.md has the format.
namespace terrace {

// Where a run's frozen parameters are: in the files of the model directory that it started from, or
// in files that it has stored once beside its checkpoints.
struct FrozenReference {
  std::vector<std::string> parameters;  // by ParameterTensor::name, in the layout's order
  std::string directory;                // of a run's own files: in the run directory
  // For a model directory: a hash of the bytes of each stored tensor, by
  // ParameterTensor::stored_name.
  std::map<std::string, std::uint64_t> tensors = {};
  std::vector<ListedFile> files = {};  // of a run's own

  bool is_model_directory() const { return files.empty(); }
};

// Returns the names of the parameters of a layout that do not train.
std::vector<std::string> frozen_parameters(const std::vector<UnitLayout>& layout);

// Reads all frozen parameters to hash them. `directory` is the directory of the weights. Throws
// IoError.
FrozenReference refer_to_weights(const std::string& directory, const HfDirectory& weights,
                                 const std::vector<UnitLayout>& layout);

// Writes the frozen parameters, exact, into the folder `frozen` of a run directory: a file of fp32
// tensors for each unit that has some. Throws IoError.
FrozenReference store_frozen(const std::string& run_dir, const std::vector<UnitLayout>& layout,
                             const StateSource& source, FileSystem& disk = system_files());

// Returns the reference as JSON.
std::string to_json(const FrozenReference& reference);
// Parses that JSON. Throws std::exception for text that to_json() does not make.
FrozenReference parse_frozen_reference(const std::string& json);

// The checkpoint whose frozen parameters are looked for, and other places where they may be.
struct FrozenSearch {
  std::string checkpoint = {};  // a directory, for messages and for files beside it
  // Another model directory, which may have the same weights. It is used where the reference's
  // model directory has no weights any more, or different ones. Empty: none.
  std::string model_directory = {};
  // Where several ranks look together, each verifies a part.
  std::int32_t rank = 0;
  std::int32_t ranks = 1;
};

// Opens the files that a reference names and verifies them: a model directory by its hashes before
// this returns, a run's own files as they are read. Throws EnvironmentError where there are none,
// and CorruptData where they are not as they were. Both errors name the file and a remedy.
// Afterwards the reference names the model directory that was verified.
std::unique_ptr<StateSource> open_frozen(FrozenReference& reference, const FrozenSearch& search,
                                         const ModelConfig& config,
                                         FileSystem& disk = system_files());

}  // namespace terrace
