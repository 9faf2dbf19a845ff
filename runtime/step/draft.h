#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/step/period.h"
#include "runtime/step/program.h"

// A program that is still being made. Its ops are attached to the tasks of the schedule. They get
// an order only when it is decided which loads there are and at which task each is issued.
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

// The place of an op beside the main op of its task. Late loads wait for the end of the step
// before, or are for the next step. They come after the other loads, which then need not wait
// behind them in the lane.
enum class Phase : std::uint8_t { kLoad, kLateLoad, kMain, kStore };

// An op of a draft. `op` itself holds no accesses: the accesses of all ops lie in one list of the
// draft, the reads of an op before its writes. The list is there because a draft of a large step
// has hundreds of thousands of ops.
struct DraftOp {
  Op op;
  std::size_t first_access = 0;
  std::uint32_t reads = 0;
  std::uint32_t writes = 0;
  std::int32_t task = 0;  // for a load: the task that needs it
  Phase phase = Phase::kMain;
  std::int32_t movement = 0;  // for a load: its number; otherwise in the order of creation
  std::int32_t step = 0;      // order within the movement
};

// A load: all the ops that bring one thing to the task that needs it.
struct Load {
  std::int32_t need_task = 0;
  std::int32_t earliest_task = 0;  // the source is not ready earlier
  bool is_late = false;
  // Whether the step before may already issue the load. The buffer that it fills is then carried.
  bool may_be_carried = false;
  Tier target_tier = Tier::kDevice;
  std::size_t target_bytes = 0;   // held from issue to need
  std::size_t staging_bytes = 0;  // held on the host while it moves
  BufferId target = kNoBuffer;    // the buffer that it fills for the task, if it makes one
  // The owner of the bytes, as in Mover::Labels.
  std::int32_t unit = -1;
  Account account = Account::kStaging;
  // For the load of a group's parameters: which use of the group they are for, and the buffer that
  // held them at the use before. If they stay in that buffer, the load is left out.
  std::int32_t group = -1;
  std::size_t use = 0;
  BufferId before = kNoBuffer;
};

struct Draft {
  Tier compute_tier = Tier::kDevice;
  std::vector<Buffer> buffers;
  std::vector<DraftOp> ops;
  std::vector<Access> accesses;
  std::vector<Load> loads;
  std::optional<Period> period;             // of its tasks
  std::vector<Repetition::Stride> strides;  // of buffers whose offset grows by repetition
  bool has_names = true;  // whether buffers have names; a caller that needs only sizes does without

  // Adds a buffer that no code looks for by key, so it must not be persistent.
  BufferId add_buffer(std::string name, std::size_t size_bytes, Tier tier, Account account,
                      Life life);
  // Adds a buffer. If it has a key, no other buffer may have the same key. Its size is rounded up.
  BufferId add_buffer(Buffer buffer);
  // Adds an op and moves its accesses to the list.
  void add_op(DraftOp op);
  std::span<const Access> reads(const DraftOp& op) const {
    return std::span(accesses).subspan(op.first_access, op.reads);
  }
  std::span<const Access> writes(const DraftOp& op) const {
    return std::span(accesses).subspan(op.first_access + op.reads, op.writes);
  }
  // Returns the reads, followed by the writes.
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

// Aborts if two buffers have the same key, or if a persistent buffer has none.
void check_keys(const Draft& draft);

// Makes the ops of one movement: a load or a store. They move bytes between tiers, through the host
// where there is no direct way. The ops of several chunks overlap: chunk c+1 is read while
// chunk c is uploaded.
class Mover {
 public:
  struct Labels {
    std::int32_t unit = -1;
    std::int32_t group = -1;
    std::int32_t micro_batch = -1;
    Parts parts = kOfThisStep;
    Account account = Account::kStaging;
  };

  // Begins a load, which is for the task `load.need_task`.
  static Mover load(Draft& draft, const Load& load, const Labels& labels);
  // Begins a store, which stands right behind the main op of `task`.
  static Mover store(Draft& draft, std::int32_t task, const Labels& labels);

  // Copies all of `source` to `target`, which is in another tier.
  void copy(const Range& source, const Range& target, std::int32_t chunk = -1);
  // Copies `source` to a new buffer in `tier` and returns that buffer. In a load it becomes the
  // load's target. Returns `source` itself if it is in that tier already.
  Range bring(const Range& source, Tier tier, std::int32_t chunk = -1);
  // Adds an op of another kind, behind the copies of this chunk so far.
  void add(Op op);
  // Makes later ops of the movement belong to the next chunk.
  void next_chunk() { ++chunk_; }

 private:
  Mover(Draft& draft, std::int32_t task, Phase phase, std::int32_t movement, const Labels& labels)
      : draft_(draft), now_(task), phase_(phase), movement_(movement), labels_(labels) {}

  void hop(const Range& source, const Range& target, std::int32_t chunk);

  Draft& draft_;
  std::int32_t now_;
  Phase phase_;
  std::int32_t movement_;
  Labels labels_;
  std::int32_t chunk_ = 0;
  std::int32_t step_ = 0;
  std::int32_t last_chunk_ = -1;
};

}  // namespace terrace
