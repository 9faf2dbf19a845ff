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

// An optimizer as the runtime knows it: the slots that it keeps for each parameter, its
// hyperparameters, and the code that updates a range of parameters. optim/update_rules.h lists all
// of them.
namespace terrace {

inline constexpr std::size_t kMostHyperparameters = 4;
inline constexpr std::size_t kMostRuleScalars = 3;

// A number that a rule keeps for each parameter, fp32 or narrower (SlotForm).
struct Slot {
  // The name that torch.optim uses, where it has the rule. Checkpoints name files by it.
  std::string_view name;
  bool has_sign = true;  // else it is never negative, and has a code of its own in 8 bits
};

// A number of a rule that a user may set, besides the learning rate and the weight decay.
struct Hyperparameter {
  enum class Range : std::uint8_t { kFraction, kPositive };  // [0, 1) or above 0

  std::string_view flag;  // of the command line, without its dashes
  std::string_view help;
  double standard = 0;  // where the user says nothing
  Range range = Range::kFraction;
};

// A rule's hyperparameters, in the order in which it lists them, as the user gave them. A rule says
// where they are rounded.
struct RuleOptions {
  std::array<double, kMostHyperparameters> values = {};
  double weight_decay = 0;

  friend bool operator==(const RuleOptions&, const RuleOptions&) = default;
};

// Returns the values, each rounded to fp32.
std::array<float, kMostHyperparameters> fp32_values(const RuleOptions& options);

// The numbers that all updates of one step share. They are made once a step from the schedule and
// the gradient norm, and then moved as bytes to where updates run.
struct StepScalars {
  float learning_rate = 0;
  float gradient_scale = 1;  // clip coefficient, times 1/loss scale: g' = g * gradient_scale
  std::array<float, kMostRuleScalars> of_rule = {1, 1, 1};  // UpdateRule::step_scalars
  std::uint32_t step = 0;                                   // counted from 1
  std::uint32_t skips = 0;  // 1: gradients overflowed, and updates leave all as it is
};

// An update of n elements. All views are 1-D, of n elements unless said otherwise. An update reads
// and writes each element by itself, in fp32. The views say what the exact value p of an element
// is, before and after:
//   fp32 master, bf16 parameter   the master; the parameter gets it rounded ties-away
//   fp32 master, fp16 parameter   the master; the parameter gets it rounded to nearest even
//   fp32 master, fp32 parameter   the master; the parameter gets it, and may be the same view
//   i16 master, bf16 parameter    the two together: join() and split() of base/half.h
// Slots that are stored in fewer bits are widened before an update and rounded after it. They are
// bf16, or codes of 8 bits (optim/moment_code.h) of blocks of kMomentBlock elements, whose
// exponents come from the new values. Random numbers of (seed, step, stream, element) decide which
// way they round.
// An update that the scalars say to skip does none of this. It only writes a parameter beside an
// fp32 master, as the master has it.
struct ParameterUpdate {
  TensorView gradient;                                // fp32 or bf16
  TensorView master;                                  // fp32 or i16, in and out
  std::array<TensorView, kMostSlots> slots = {};      // fp32, bf16 or u8, in and out
  std::array<TensorView, kMostSlots> exponents = {};  // u8, one for a block of u8 slots, in and out
  TensorView parameter;  // fp32, bf16 or fp16, out; also in with an i16 master
  RuleOptions options;
  // The number of elements, from the first on, that weight decay applies to.
  std::int64_t decayed_elements = std::numeric_limits<std::int64_t>::max();
  const StepScalars* scalars = nullptr;
  MomentRounding rounding;  // of slots that are not fp32
  // The prefetch distance of the CPU's code, in elements; 0: as suits it best.
  std::int64_t fetch_elements = 0;
};

struct UpdateRule {
  std::string_view name;  // as --optimizer has it
  std::span<const Slot> slots;
  std::span<const Hyperparameter> hyperparameters;
  // Returns the scalars of the run's n-th update, n = `updates`, with this learning rate.
  std::array<float, kMostRuleScalars> (*step_scalars)(const RuleOptions& options,
                                                      std::int64_t updates,
                                                      double learning_rate) = nullptr;
  // The scalar definition.
  void (*reference)(const ParameterUpdate& update) = nullptr;
  // The update by Highway on workers, with the same bits.
  void (*cpu)(const KernelContext& context, const ParameterUpdate& update) = nullptr;
  // The same for the elements [begin, end), by the caller alone. Both are multiples of
  // kMomentBlock, or the end of all.
  void (*cpu_range)(const ParameterUpdate& update, std::int64_t begin, std::int64_t end) = nullptr;
};

// Returns the options of a user who says nothing; they have no weight decay.
RuleOptions standard_options(const UpdateRule& rule);

// Sets the views of the slots, their exponents and the master to the parts of a state of `elements`
// elements; a parameter that is its own master must be set before.
void set_state_views(ParameterUpdate& update, const StateFormat& format, std::byte* state,
                     std::int64_t elements);

// Returns the views of the elements [begin, begin + count) of an update, both multiples of
// kMomentBlock. The fields that are no views are copied.
ParameterUpdate part_of_update(const ParameterUpdate& update, std::int64_t begin,
                               std::int64_t count);

}  // namespace terrace
