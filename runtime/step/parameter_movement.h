#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/step/movement_state.h"

namespace terrace {

// Where an update writes a chunk's parameters, and reads them if its rule does. That is their home,
// if it is in the same memory.
struct UpdatedParameter {
  Range home;     // `updated` is copied back here
  Range updated;  // as large as the home; the home itself if no copy is made
  Range own;      // the part of `updated` that this rank updates
  // The home has more than this rank updates: the whole chunk, or all that an island's rank has.
  // Then the updated parts are gathered, in the home or before they go there.
  bool is_divided = false;
  bool gathers_at_home = false;
};

// Brings the parameters of groups to the tasks that use them, and takes updated ones home.
class ParameterMovement {
 public:
  // Adds the homes to the draft. Borrows the state.
  explicit ParameterMovement(MovementState& state);

  // Returns where the present task finds the group's parameters in the compute tier.
  Range for_task(std::int32_t group);

  // Returns where the update of the task runs on a chunk's parameters, in the tier `where`.
  UpdatedParameter for_update(const Task& task, Tier where);
  // Sends the updated part to the pipeline stage that has a copy of the group.
  void send_updated(const Task& task, const Range& own);
  // Receives it there.
  void receive_updated(const Task& task);
  // Takes the updated parameters home.
  void settle(const Task& task, const UpdatedParameter& parameter);

 private:
  // A group's parameters in the compute tier.
  struct Instance {
    BufferId buffer = kNoBuffer;
    std::size_t use = 0;  // index in uses_
  };

  bool stays(std::int32_t group, std::size_t use) const;
  // Returns the index in uses_ of the group's next use at or after the present task, or the number
  // of uses if there is none.
  std::size_t next_use(std::int32_t group) const;
  BufferId add_buffer(std::int32_t group);
  BufferId load(std::int32_t group, std::size_t use);
  Mover::Labels labels_of_load(std::int32_t group) const;

  bool updates_in_place(const Task& task, Tier where) const;
  Range updated_elsewhere(const Task& task, const Range& home, Tier where);
  // Returns the place in the compute tier where the task before has used them, or where the next
  // use will find them.
  Range updated_in_place(const Task& task, const Range& home);
  // Loads the group's frozen parameters for the step's next use, next to those that train.
  void load_frozen(const Task& task, BufferId target);
  // Returns the labels of movement that both the update and the step's next use of the parameters
  // need.
  static Mover::Labels labels_of_both(const Task& task);
  // Returns whether the group's parameters were fetched for the task right before its update.
  bool just_used(const Task& task) const;
  std::size_t offset_in_group(const Task& task) const;
  // Returns whether a rank updates less of a chunk than its home has.
  bool updates_part_of_home(std::int32_t group) const;
  // Returns the part of a home's chunk that this rank updates.
  Range own_part(std::int32_t group, const Range& home) const;
  void gather_updated(const Task& task, const Range& own, const Range& home);
  // Adds the movement of a chunk from its home in shards to a range that holds the whole chunk.
  struct ShardLoad {
    Range home;
    Range target;
  };
  void load_shards(Mover& mover, std::int32_t group, const ShardLoad& load, std::int32_t chunk);

  MovementState& state_;
  const Homes homes_;
  const std::vector<std::vector<std::int32_t>> uses_;  // by group: tasks
  std::vector<std::optional<Instance>> instances_;     // by group
  // By group: the first chunks, which an update has left on the host on their way to NVMe. The next
  // load takes them from there.
  std::vector<std::vector<Range>> updated_on_host_;
  std::vector<std::int32_t> updated_at_;  // by group: the task that updated it; -1: none yet
};

}  // namespace terrace
