#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

#include "kernels/kernel_context.h"
#include "memory/tensor.h"
#include "optim/moment_code.h"
#include "optim/state_format.h"

// An optimizer as the runtime knows it: what it keeps of each parameter, what it is set by, and the
// code that updates a range of parameters. optim/update_rules.h lists those that there are.
namespace terrace {

inline constexpr std::size_t kMostHyperparameters = 4;
inline constexpr std::size_t kMostRuleScalars = 3;

// A number that a rule keeps for each parameter, fp32 or narrower (SlotForm).
struct Slot {
  // As torch.optim calls it where it has the rule; checkpoints name files by it.
  std::string_view name;
  bool has_sign = true;  // else it is never negative, and has a code of its own in 8 bits
};

// What a user may set of a rule, beside the learning rate and the weight decay.
struct Hyperparameter {
  enum class Range : std::uint8_t { kFraction, kPositive };  // [0, 1) or above 0

  std::string_view flag;  // of the command line, without its dashes
  std::string_view help;
  double standard = 0;  // where the user says nothing
  Range range = Range::kFraction;
};

// A rule's hyperparameters, in the order in which it lists them, as the user gave them: a rule says
// where they are rounded.
struct RuleOptions {
  std::array<double, kMostHyperparameters> values = {};
  double weight_decay = 0;

  friend bool operator==(const RuleOptions&, const RuleOptions&) = default;
};

// The values, each rounded to fp32.
std::array<float, kMostHyperparameters> fp32_values(const RuleOptions& options);

// What every update of one step shares. Made once a step from the schedule and the gradient norm,
// and then moved as bytes to where updates run.
struct StepScalars {
  float learning_rate = 0;
  float gradient_scale = 1;  // clip coefficient, times 1/loss scale: g' = g * gradient_scale
  std::array<float, kMostRuleScalars> of_rule = {1, 1, 1};  // UpdateRule::step_scalars
  std::uint32_t step = 0;                                   // counted from 1
  std::uint32_t skips = 0;  // 1: gradients overflowed, and updates leave all as it is
};

// An update of n elements; all views are 1-D, of n unless said. An update reads and writes each
// element by itself, in fp32. What the exact value p of an element is before and after, by the
// views:
//   fp32 master, bf16 parameter   the master; the parameter gets it rounded ties-away
//   fp32 master, fp16 parameter   likewise, to nearest even
//   fp32 master, fp32 parameter   the master; the parameter gets it, and may be the same view
//   i16 master, bf16 parameter    the two together: join() and split() of base/half.h
// Slots are widened before and rounded behind an update where they are stored in fewer bits: bf16,
// or codes of 8 bits (optim/moment_code.h) of blocks of kMomentBlock elements, whose exponents are
// of the new values. Which way they round is decided by random numbers of (seed, step, stream,
// element).
// An update that the scalars say to skip does none of this: only a parameter beside an fp32 master
// is written, as the master has it.
struct ParameterUpdate {
  TensorView gradient;                                // fp32 or bf16
  TensorView master;                                  // fp32 or i16, in and out
  std::array<TensorView, kMostSlots> slots = {};      // fp32, bf16 or u8, in and out
  std::array<TensorView, kMostSlots> exponents = {};  // u8, one for a block of u8 slots, in and out
  TensorView parameter;  // fp32, bf16 or fp16, out; also in with an i16 master
  RuleOptions options;
  // Weight decay applies to the first so many elements.
  std::int64_t decayed_elements = std::numeric_limits<std::int64_t>::max();
  const StepScalars* scalars = nullptr;
  MomentRounding rounding;  // of slots that are not fp32
  // How far ahead of its work the CPU's code fetches memory, in elements; 0: as suits it best.
  std::int64_t fetch_elements = 0;
};

struct UpdateRule {
  std::string_view name;  // as --optimizer has it
  std::span<const Slot> slots;
  std::span<const Hyperparameter> hyperparameters;
  // The scalars of the run's n-th update, n = `updates`, with this learning rate.
  std::array<float, kMostRuleScalars> (*step_scalars)(const RuleOptions& options,
                                                      std::int64_t updates,
                                                      double learning_rate) = nullptr;
  // Scalar definition.
  void (*reference)(const ParameterUpdate& update) = nullptr;
  // Highway + workers, the same bits.
  void (*cpu)(const KernelContext& context, const ParameterUpdate& update) = nullptr;
  // Likewise, of the elements [begin, end) by the caller alone; both are multiples of kMomentBlock,
  // or the end of all.
  void (*cpu_range)(const ParameterUpdate& update, std::int64_t begin, std::int64_t end) = nullptr;
};

// What is set where a user says nothing; no weight decay.
RuleOptions standard_options(const UpdateRule& rule);

// Sets the views of the slots, their exponents and the master to the parts of a state of `elements`
// elements; a parameter that is its own master must be set before.
void set_state_views(ParameterUpdate& update, const StateFormat& format, std::byte* state,
                     std::int64_t elements);

}  // namespace terrace
