#pragma once

#include <memory>
#include <string>

#include "base/error.h"
#include "runtime/checkpoint/checkpoint.h"

// Which checkpoint a run goes on from.
namespace terrace {

// What --resume says: none, auto (the latest of the run directory, if there is one) or a
// checkpoint's path. Null: a fresh start. Throws ConfigError where the path is no checkpoint, and
// CorruptData as naming_earlier_checkpoint() does.
std::unique_ptr<Checkpoint> find_checkpoint(const std::string& resume, const std::string& run_dir);

// `damage` of the checkpoint that `resume` stands for. Whoever asked for the latest is told which
// one is before it; that is not taken by itself, which would give up steps in silence.
CorruptData naming_earlier_checkpoint(const CorruptData& damage, const std::string& resume,
                                      const std::string& run_dir);

}  // namespace terrace
