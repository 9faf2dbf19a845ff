#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/function_ref.h"
#include "memory/host/host_memory.h"
#include "runtime/checkpoint/checkpoint.h"

namespace terrace {

// The memory through which the state of a step passes on its way into a checkpoint: one thread
// reads it out of its homes, another one writes it to files, in the same order. The first is two
// pieces ahead of the second, as memory that is used again costs neither page faults nor the
// caches; where it is in a hurry, as far as the memory allows.
class StateStaging {
 public:
  // Takes so much memory at most, but room for two pieces at least. Throws OutOfMemory.
  StateStaging(const CheckpointedModel& model, std::size_t most_bytes);

  // Called after all of a unit is read: its homes may change.
  using UnitRead = FunctionRef<void(std::int32_t unit)>;
  // Says whether somebody waits for the state to be read; true once, it stays true. Asked often.
  using InHurry = FunctionRef<bool()>;
  // Reads the state by `fetch`, from begin to end. Throws what `fetch` throws, which take() then
  // throws too. Returns early where nobody takes any more.
  void read_all(FetchState fetch, UnitRead unit_read, InHurry in_hurry);

  // Gives the next piece, as FetchState; waits until it is read. Throws what read_all() threw.
  void take(StateField field, const UnitLayout& unit, std::int64_t begin, std::span<float> out);
  // Says that nobody takes any more.
  void stop();

 private:
  // A part of a unit's field.
  struct Piece {
    const UnitLayout* unit = nullptr;
    StateField field = StateField::kMaster;
    std::int64_t begin = 0;
    std::size_t count = 0;
    bool ends_unit = false;
  };

  static std::vector<Piece> pieces_of(const CheckpointedModel& model);
  std::span<float> memory_of(std::size_t slot, const Piece& piece);
  std::optional<std::size_t> wait_for_slot(InHurry in_hurry);  // none: stopped
  void fail(const std::exception_ptr& failure);

  const std::vector<Piece> pieces_;  // in order
  const std::size_t slots_;
  HostMemory memory_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_, as is all below; the slot that was used last is the last.
  std::vector<std::size_t> free_slots_;
  std::deque<std::size_t> read_slots_;  // of pieces that are read and not yet taken, in order
  std::size_t taken_ = 0;               // pieces
  bool is_stopped_ = false;
  std::exception_ptr failure_;
};

}  // namespace terrace
