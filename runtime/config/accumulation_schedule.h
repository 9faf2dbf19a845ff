#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "runtime/config/flag_value.h"
#include "runtime/config/train_options.h"

// How many micro-batches a data-parallel rank has in each step: gradient_accumulation_steps, or
// what --accumulation-schedule says.
namespace terrace {

// Reads "8@1,16@2001": 8 micro-batches from step 1 on, 16 from step 2001 on; or "auto". Throws
// ConfigError unless the first step is 1 and each step is later than the one before.
void read_accumulation_schedule(const FlagValue& value, BatchOptions& batch);
// Returns the schedule as config.toml has it; empty where there is none.
std::string accumulation_schedule_toml(const BatchOptions& batch);

// Sets gradient_accumulation_steps to the schedule's largest number, if there is a schedule. An
// automatic one needs that number from the user, and measures the gradient noise scale. Throws
// ConfigError where flags contradict it. `is_given` returns whether the user gave a flag at all.
void settle_accumulation(TrainOptions& options, FunctionRef<bool(std::string_view flag)> is_given);

// The functions below are for a schedule that is known: not for an automatic one, unless `batch`
// has the phases that were chosen so far. The last of these then counts for all later steps.

// Returns the micro-batches of a step, counted from 1.
std::int64_t micro_batches_of_step(const BatchOptions& batch, std::int64_t step);
// Returns the micro-batches of all steps up to this one together; 0 for step 0.
std::int64_t micro_batches_until(const BatchOptions& batch, std::int64_t step);
// Returns the step that completes this number of micro-batches.
std::int64_t step_of_micro_batches(const BatchOptions& batch, std::int64_t micro_batches);

}  // namespace terrace
