#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "offload/block_store.h"
#include "runtime/checkpoint/file_system.h"
#include "runtime/step/program.h"

// Bugs that are planted on purpose, through the seams and the program. The simulation must find
// them.
namespace terrace {

enum class PlantedBug : std::uint8_t {
  kNone,
  kLostWriteBack,      // a write to the drive is acknowledged and never made
  kMissingReuseEdge,   // an op does not wait for the last reader of the space that it writes
  kStaleExtent,        // a read does not wait for the write to its extent before it
  kScalarsOfNextStep,  // a deferred update finds the next step's learning rate
  kDroppedCompletion,  // a request is carried out, and its end is not reported
  kUnsyncedManifest,   // fsync of the manifest does nothing
  kUnsyncedDirectory,  // fsync of the run directory does nothing
  kUncheckedSum,       // bytes read from the drive are not compared with their checksum
  kSwallowedFailure,   // a request that failed is reported as done
};
std::string_view name_of(PlantedBug bug);

// Takes an edge out of a compiled program, or moves an op in it, so that verify() complains.
// Returns false where the program has nothing of the kind.
bool plant_in_program(PlantedBug bug, std::uint64_t dice, Program& program);

// Returns a store with the bug in one of its requests; the store itself for bugs that are
// elsewhere.
std::unique_ptr<BlockStore> plant_in_store(PlantedBug bug, std::uint64_t dice,
                                           std::unique_ptr<BlockStore> store);

// Returns a file system with the bug. Borrows `files`.
std::unique_ptr<FileSystem> plant_in_files(PlantedBug bug, FileSystem& files);

}  // namespace terrace
