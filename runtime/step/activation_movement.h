#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/step/movement_state.h"

namespace terrace {

// Activations stay where they are if a task at most this many tasks later needs them again: they
// would only leave and come back.
inline constexpr std::int32_t kShortGap = 2;

// Places what forwards leave for other tasks: hidden states, their gradients, and what a unit saves
// for its backward. All of it is known by the number of the forward that leaves it
// (runtime/step/forward_chains.h).
class ActivationMovement {
 public:
  // Borrows the state.
  explicit ActivationMovement(MovementState& state);

  // Return where the present task finds its forward's hidden input with this index, or writes its
  // forward's output.
  Range input(const Task& task, std::int32_t index);
  Range output(const Task& task);
  // Returns where the task finds what its forward saved, or writes it.
  Range saved(const Task& task, bool writes);
  // A gradient that a task writes: of its forward's hidden input with this index. It is added to
  // what another reader of that input has written, if there is any.
  struct InputGradient {
    Range range;
    bool adds = false;
  };
  InputGradient input_gradient(const Task& task, std::int32_t index);
  Range output_gradient(std::int32_t forward) const;
  // Returns the forwards of a unit, one in each micro-batch that has tasks, ascending.
  std::vector<std::int32_t> forwards_of(std::int32_t unit) const;
  // Adds a send or a receive of hidden states or of their gradient.
  void pass_message(const Task& task);

  // Called behind the last part of a pass. They send activations away that are needed again only
  // later, and give places back that are not needed again.
  void settle_forward(const Task& task);
  void settle_backward(const Task& task);

 private:
  // An activation. It is in memory, or in its home until a task needs it again.
  struct Activation {
    BufferId memory = kNoBuffer;
    std::optional<Range> away;
    std::int32_t away_since = 0;
  };
  // The activations that a forward leaves, and the tasks that use them.
  struct Forward {
    std::int32_t producer = -1;         // the task that computes it or receives its output
    std::int32_t again_at = -1;         // the first task of its backward or recomputation; -1: none
    std::vector<std::int32_t> readers;  // the tasks that read the output, ascending
    Activation hidden;
    Activation saved;
    BufferId hidden_gradient = kNoBuffer;
  };
  // Places that receive hidden states or their gradients. They share memory with nothing else.
  // Otherwise a receive could wait for other bytes to leave its place, these bytes could be on
  // their way to a stage that waits in the same way, and both would wait forever.
  struct Slots {
    const char* name = "";
    BufferKind kind = BufferKind::kOther;
    std::vector<BufferId> all;
    std::vector<BufferId> free;  // the longest free first
  };

  // Notes what other tasks ask about this one.
  void note(const Task& task, std::int32_t number);
  Forward& at(std::int32_t forward) { return forwards_.at(static_cast<std::size_t>(forward)); }
  const Forward& at(std::int32_t forward) const {
    return forwards_.at(static_cast<std::size_t>(forward));
  }
  // Makes the buffer for a forward's output or its gradient.
  BufferId hidden_buffer(const char* what, std::int32_t forward);
  // Returns whether the forward belongs to the repeated micro-batch, and the gradient of its output
  // is needed until the end of the step.
  bool lasts_for_all(std::int32_t forward) const;
  // Makes the gradient's buffer large enough for every micro-batch that the repeated one stands
  // for, with a piece for each.
  void keep_all_of(std::int32_t forward);
  // Returns the next task that reads the forward's output after the present one.
  std::optional<std::int32_t> next_reader(std::int32_t forward) const;
  void send_away(Activation& activation, const BufferKey& key, const Task& task,
                 std::int32_t needed_at);
  Range brought_back(Activation& activation, const Task& task);
  BufferId take_slot(Slots& slots);
  // Called when no later task reads the forward's output.
  void release_hidden(std::int32_t forward);
  // Called with every buffer whose content has had its last use. Ignores buffers that are no slots.
  static void release_slot(Slots& slots, BufferId buffer);

  MovementState& state_;
  std::vector<Forward> forwards_;  // by number
  Slots hidden_slots_{"received hidden", BufferKind::kReceivedHidden, {}, {}};
  Slots gradient_slots_{"received hidden grad", BufferKind::kReceivedHiddenGradient, {}, {}};
};

}  // namespace terrace
