#pragma once

#include <optional>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/engine/training_state.h"
#include "runtime/train/train_console.h"

// The errors of coded gradients (StateClass::kErrors) on their way from a run to its checkpoints,
// and back.
namespace terrace {

// Returns whose errors the checkpoints of a run have; none where its ranks keep none.
std::optional<GradientErrors> gradient_errors_of(const StepModel& model);

// Returns the bytes that errors add to a checkpoint of a run.
std::uint64_t errors_in_checkpoint(const StepModel& model);

// Replaces this rank's errors by the errors in an open checkpoint, where the checkpoint has the
// same ranks and the same chunks. Elsewhere the errors stay zero, as they were filled in. Prints
// where a run goes on with other errors than the checkpoint has. Throws CorruptData, which names
// the file, IoError.
void load_errors(Checkpoint& checkpoint, const StepModel& model, TrainingState& state,
                 TrainConsole& console);

}  // namespace terrace
