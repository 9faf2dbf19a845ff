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

// The memory through which the state of a step passes on its way into a checkpoint. One thread
// reads the state out of its homes, another one writes it to files, in the same order. The reader
// stays two pieces ahead of the writer, because reused memory costs neither page faults nor cache
// space. In a hurry, it reads ahead as far as the memory allows.
class StateStaging {
 public:
  // Takes at most `most_bytes` of memory, but at least the room for two pieces. Throws OutOfMemory.
  StateStaging(const CheckpointedModel& model, std::size_t most_bytes);

  // Called when the whole unit is read: from then on its homes may change.
  using UnitRead = FunctionRef<void(std::int32_t unit)>;
  // Returns whether somebody waits for the state to be read; once true, it stays true. Called
  // often.
  using InHurry = FunctionRef<bool()>;
  // Reads the whole state through `fetch`, in order. Throws what `fetch` throws, and take() then
  // throws it too. Returns early after stop().
  void read_all(FetchState fetch, UnitRead unit_read, InHurry in_hurry);

  // Copies out the next piece, as a FetchState; waits until it is read. Throws what read_all()
  // threw.
  void take(StateField field, const UnitLayout& unit, std::int64_t begin, std::span<float> out);
  // Says that take() will not be called any more.
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
  // Guarded by mutex_, as is everything below; the slot that was used last is at the end.
  std::vector<std::size_t> free_slots_;
  std::deque<std::size_t> read_slots_;  // of pieces read and not yet taken, in order
  std::size_t taken_ = 0;               // pieces
  bool is_stopped_ = false;
  std::exception_ptr failure_;
};

}  // namespace terrace
