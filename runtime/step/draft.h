#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/step/program.h"

// A program that is still being made: ops are attached to the tasks of the schedule, and have an
// order only when it is decided which loads there are and at which task each is issued.
namespace terrace {

// A piece of a buffer.
struct Range {
  BufferId buffer = kNoBuffer;
  std::size_t offset = 0;
  std::size_t size_bytes = 0;
};

inline Access as(Role role, const Range& range) {
  return Access{role, range.buffer, range.offset, range.size_bytes};
}

// Where an op stands beside the op of its task. Late loads wait for the end of the step before, or
// are for the next step: they come last, so that the others need not wait in the lane behind them.
enum class Phase : std::uint8_t { kLoad, kLateLoad, kMain, kStore };

// `op` has no accesses of its own: those of all ops lie in one list of the draft, the reads of an
// op before its writes. A draft of a large step has hundreds of thousands of ops.
struct DraftOp {
  Op op;
  std::size_t first_access = 0;
  std::uint32_t reads = 0;
  std::uint32_t writes = 0;
  std::int32_t task = 0;  // of loads: the task that needs it
  Phase phase = Phase::kMain;
  std::int32_t group = 0;  // of loads: its number; otherwise the order of making
  std::int32_t step = 0;   // within the group
};

// Everything that brings one thing to the task that needs it.
struct Load {
  std::int32_t need_task = 0;
  std::int32_t earliest_task = 0;  // its source is not ready before
  bool is_late = false;
  // Whether the step before the one that needs it may issue it: what it brings is then carried.
  bool may_be_carried = false;
  Tier target_tier = Tier::kDevice;
  std::size_t target_bytes = 0;   // held from issue to need
  std::size_t staging_bytes = 0;  // held on the host while it moves
  BufferId target = kNoBuffer;    // what is brought to the task, where the load makes it
  // Of a unit's parameters: which use of the unit they are for, and the buffer that had them at the
  // use before. The load is left out where they stay in it.
  std::int32_t unit = -1;
  std::size_t use = 0;
  BufferId before = kNoBuffer;
};

struct Draft {
  Tier compute_tier = Tier::kDevice;
  std::vector<Buffer> buffers;
  std::vector<DraftOp> ops;
  std::vector<Access> accesses;
  std::vector<Load> loads;
  bool has_names = true;  // of buffers; whoever only wants to know sizes does without

  // Adds a buffer that nobody looks for: it is not persistent.
  BufferId add_buffer(std::string name, std::size_t size_bytes, Tier tier, Account account,
                      Life life);
  // Adds a buffer with a key, which no other has. Its size is rounded up.
  BufferId add_buffer(Buffer buffer);
  // Adds an op, whose accesses are moved to the list.
  void add_op(DraftOp op);
  std::span<const Access> reads(const DraftOp& op) const {
    return std::span(accesses).subspan(op.first_access, op.reads);
  }
  std::span<const Access> writes(const DraftOp& op) const {
    return std::span(accesses).subspan(op.first_access + op.reads, op.writes);
  }
  // Reads, then writes.
  std::span<const Access> all(const DraftOp& op) const {
    return std::span(accesses).subspan(op.first_access, op.reads + op.writes);
  }
  // Returns the name of a buffer for people; empty in a draft without names.
  template <typename... Args>
  std::string name(fmt::format_string<Args...> form, Args&&... args) const {
    return has_names ? fmt::format(form, std::forward<Args>(args)...) : std::string();
  }
  Range whole(BufferId buffer) const { return {buffer, 0, buffers.at(buffer).size_bytes}; }
  Tier tier_of(const Range& range) const { return buffers.at(range.buffer).tier; }
};

// Aborts where two buffers have one key, or a persistent buffer has none.
void check_keys(const Draft& draft);

// Makes the ops of one load or one store: a group that moves bytes between tiers, by way of the
// host where there is no direct way. Ops of several chunks overlap: chunk c+1 is read while c is
// uploaded.
class Mover {
 public:
  struct Labels {
    std::int32_t unit = -1;
    std::int32_t micro_batch = -1;
    Parts parts = kOfThisStep;
    Account account = Account::kStaging;
  };

  // A load for `need_task`.
  static Mover load(Draft& draft, const Load& load, const Labels& labels);
  // A store right behind the main op of `task`.
  static Mover store(Draft& draft, std::int32_t task, const Labels& labels);

  // Copies all of `source` to `target`, in other tiers.
  void copy(const Range& source, const Range& target, std::int32_t chunk = -1);
  // Copies to a new buffer in `tier`, a load's target; returns `source` itself if it is there
  // already.
  Range bring(const Range& source, Tier tier, std::int32_t chunk = -1);
  // Adds an op of another kind, behind the copies of this chunk so far.
  void add(Op op);
  // Later ops of the same group are for the next chunk.
  void next_chunk() { ++chunk_; }

 private:
  Mover(Draft& draft, std::int32_t task, Phase phase, std::int32_t group, const Labels& labels)
      : draft_(draft), now_(task), phase_(phase), group_(group), labels_(labels) {}

  void hop(const Range& source, const Range& target, std::int32_t chunk);

  Draft& draft_;
  std::int32_t now_;
  Phase phase_;
  std::int32_t group_;
  Labels labels_;
  std::int32_t chunk_ = 0;
  std::int32_t step_ = 0;
  std::int32_t last_chunk_ = -1;
};

}  // namespace terrace
