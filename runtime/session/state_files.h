#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/checkpoint/file_system.h"
#include "runtime/session/parameter_memory.h"
#include "runtime/session/parameter_table.h"
#include "runtime/session/state_home.h"

// The saved state of a session: a directory with a safetensors file for each field (the masters and
// the rules' slots) and a manifest with the files' checksums. A tensor has its own name in the
// files. The manifest is written last and names the files that belong to it, so the directory
// always has one whole state: the old one until the new one is whole.
namespace terrace {

// The progress of a training.
struct SessionProgress {
  std::int64_t step = 0;
  std::vector<std::int64_t> updates;  // of each tensor
};

inline constexpr const char* kStateManifest = "terrace_state.json";

// The largest number of steps, and of updates of a tensor: doubles count up to it without gaps.
inline constexpr std::int64_t kMostSteps = std::int64_t{1} << 53;

// Makes the directory if it is not there; its parent must be there. Throws IoError, and
// SessionError (kArgument) if it is a checkpoint of a training run.
void make_state_directory(const std::string& directory, FileSystem& disk = system_files());

// The parts of a session that save_session_state() reads.
struct SavedParts {
  const ParameterTable& table;
  StateHome& home;
  ParameterMemory& memory;
};
// Saves into a directory that make_state_directory() has made or checked; one call at a time
// (SaveLock). Removes only files of earlier saves: the ones that the manifest named before, and the
// ones that a killed save has left, which are listed in terrace_state.changes. Throws IoError,
// CorruptData, DeviceError.
void save_session_state(const std::string& directory, const SavedParts& parts,
                        const SessionProgress& progress, FileSystem& disk = system_files());

// A saved state that fits a session's tensors.
class SavedSessionState {
 public:
  // Throws IoError, CorruptData, and SessionError (kMismatch), which names the tensor that differs.
  SavedSessionState(std::string directory, const ParameterTable& table,
                    FileSystem& disk = system_files());

  const SessionProgress& progress() const { return progress_; }
  // Sets the state of all chunks and the parameters themselves. Throws IoError, CorruptData,
  // DeviceError.
  void load(StateHome& home, ParameterMemory& memory);

 private:
  struct File {
    std::string field;
    std::string listed;  // JSON of its ListedFile
  };

  void read_manifest();

  const std::string directory_;
  const ParameterTable& table_;
  FileSystem& disk_;
  SessionProgress progress_;
  std::vector<File> files_;
};

}  // namespace terrace
