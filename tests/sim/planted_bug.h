#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "offload/block_store.h"
#include "runtime/checkpoint/file_system.h"
#include "runtime/step/program.h"

// Bugs put in on purpose, through the seams and the program: what the simulation must find.
namespace terrace {

enum class PlantedBug : std::uint8_t {
  kNone,
  kLostWriteBack,      // a write to the drive is acknowledged and never made
  kMissingReuseEdge,   // an op does not wait for the last reader of the space that it writes
  kStaleExtent,        // a read does not wait for the write to its extent before it
  kScalarsOfNextStep,  // a deferred update finds the next step's learning rate
  kDroppedCompletion,  // a request is carried out, and nobody is told
  kUnsyncedManifest,   // fsync of the manifest does nothing
  kUnsyncedDirectory,  // fsync of the run directory does nothing
  kUncheckedSum,       // what is read from the drive is not compared with its checksum
  kSwallowedFailure,   // a request that failed is reported as done
};
std::string_view name_of(PlantedBug bug);

// Takes an edge out of a compiled program, or moves an op in it, so that verify() complains.
// Returns false where the program has nothing of the kind.
bool plant_in_program(PlantedBug bug, std::uint64_t dice, Program& program);

// A store with the bug, in one of its requests; the store itself for bugs that are elsewhere.
std::unique_ptr<BlockStore> plant_in_store(PlantedBug bug, std::uint64_t dice,
                                           std::unique_ptr<BlockStore> store);

// A file system with the bug. Borrows.
std::unique_ptr<FileSystem> plant_in_files(PlantedBug bug, FileSystem& files);

}  // namespace terrace
