#pragma once

#include <cstdint>
#include <string>

#include "base/function_ref.h"
#include "runtime/data/token_files.h"

// Megatron's indexed datasets: P.bin has the ids of all sequences, and P.idx their lengths and
// places, and which of them make a document (megatron/core/datasets/indexed_dataset.py).
namespace terrace {

// Returns P.bin of `path`, which is P, P.bin or P.idx.
std::string megatron_ids_path(const std::string& path);
// Returns whether P.idx is there and begins as Megatron's do. `ids_path` is the path of P.bin.
bool has_megatron_index(const std::string& ids_path);

// Returns the ids in P.bin, with their documents. Reads the whole index. Throws IoError;
// ConfigError for ids of another type than u16 or i32, and for the modes of multimodal data;
// CorruptData where the sequences do not lie one after the other or the two files do not match.
TokenFile open_megatron(const std::string& ids_path);

// Calls `visit` with the end of each document of P.idx in turn. Throws IoError, CorruptData.
void visit_megatron_ends(const std::string& index_path, FunctionRef<void(std::int64_t end)> visit);

}  // namespace terrace
