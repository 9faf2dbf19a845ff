#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/checkpoint/file_system.h"
#include "runtime/checkpoint/listed_file.h"

// The errors of coded gradients (StateClass::kErrors) in a checkpoint: a file of raw bytes for each
// rank that keeps some. Each rank has errors of its own, so other meshes of ranks have no use for
// them.
namespace terrace {

// The ranks whose errors a checkpoint has, and what each byte of them belongs to. A run goes on
// with errors only where all of this is as in the run itself.
struct GradientErrors {
  std::int32_t data_ranks = 1;
  std::int32_t tensor_ranks = 1;
  std::int32_t virtual_stages = 1;         // of a pipeline stage
  std::vector<std::int32_t> piece_begins;  // as in PipelineCut; empty with one pipeline stage
  std::uint64_t chunks_hash = 0;           // of the chunks that the model's groups are cut into
  std::vector<std::uint64_t> stage_bytes;  // of each rank of a pipeline stage; may be 0

  std::int32_t pipeline_stages() const { return static_cast<std::int32_t>(stage_bytes.size()); }
  // Returns the number of ranks of a pipeline stage. They are neighbours, as in parallel/mesh.h.
  std::int32_t ranks_of_stage() const { return data_ranks * tensor_ranks; }
  std::int32_t ranks() const { return ranks_of_stage() * pipeline_stages(); }
  std::uint64_t bytes_of_rank(std::int32_t rank) const {
    return stage_bytes.at(static_cast<std::size_t>(rank / ranks_of_stage()));
  }

  friend bool operator==(const GradientErrors&, const GradientErrors&) = default;
};

// Returns this as a JSON object.
std::string to_json(const GradientErrors& errors);
// Reads such an object. Throws a std::exception if it is none.
GradientErrors parse_gradient_errors(const std::string& json);

// Returns the name of a rank's file.
std::string error_file_name(std::int32_t rank);
// Throws std::invalid_argument, which names the file, where `files` lack the file of a rank or have
// it in another size.
void check_error_files(const GradientErrors& errors, const std::vector<ListedFile>& files);
// Returns the bytes that the files and their part of the manifest take, rounded up.
std::uint64_t error_files_bytes(const GradientErrors& errors);

// The errors that go into a checkpoint.
struct CheckpointedErrors {
  GradientErrors of;
  // Sets `out` to bytes of a rank's errors, from `begin` on.
  std::function<void(std::int32_t rank, std::uint64_t begin, std::span<std::byte> out)> fetch;
};
// Writes the files of all ranks and returns their entries in the manifest. Throws IoError, and what
// `fetch` throws.
std::vector<ListedFile> write_error_files(const std::string& directory,
                                          const CheckpointedErrors& errors, FileSystem& disk);

}  // namespace terrace
