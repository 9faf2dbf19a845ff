#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/checkpoint/safetensors.h"

// The index of a model directory whose weights are in several files.
namespace terrace {

struct HfIndex {
  std::map<std::string, std::string> file_of;  // by the name of a tensor

  // The names of the files, each once.
  std::vector<std::string> files() const;
};

bool has_hf_index(const std::string& directory);
// Reads the index. Throws CorruptData for a file that is not an index, IoError.
HfIndex read_hf_index(const std::string& directory);

// Returns whether two tensors have the same type, shape and bytes. Throws IoError.
bool same_bytes(const SafetensorsFile& a_file, const SafetensorsTensor& a,
                const SafetensorsFile& b_file, const SafetensorsTensor& b);

// Compares the index beside model.safetensors, left by an older save, with that file. It compares
// the names of the tensors and, for the index's files that are there, the type, shape and 64 KiB at
// the start, the middle and the end of each tensor. Throws ConfigError, which names both, where
// they differ: they are two models.
void check_stale_index(const std::string& directory, const SafetensorsFile& single);

}  // namespace terrace
