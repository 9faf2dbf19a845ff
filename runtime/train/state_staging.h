#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>
#include <vector>

#include "base/function_ref.h"
#include "memory/host/host_memory.h"
#include "runtime/checkpoint/checkpoint.h"

namespace terrace {

// The memory through which the state of a step passes on its way into a checkpoint: one thread
// reads it out of its homes, another one writes it to files, in the same order. The first is as far
// ahead of the second as the memory allows; with room for the whole state it waits for no drive.
class StateStaging {
 public:
  // Returns the memory that has room for all pieces of the state: more is of no use.
  static std::size_t whole_bytes(const CheckpointedModel& model);

  // Takes so much memory at most, but room for two pieces at least. Throws OutOfMemory.
  StateStaging(const CheckpointedModel& model, std::size_t most_bytes);

  // Called after all of a unit is read: its homes may change.
  using UnitRead = FunctionRef<void(std::int32_t unit)>;
  // Reads the state by `fetch`, from begin to end. Throws what `fetch` throws, which take() then
  // throws too. Returns early where nobody takes any more.
  void read_all(FetchState fetch, UnitRead unit_read);

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
  std::span<float> memory_of(std::size_t piece);
  bool wait_for_room(std::size_t piece);
  void fail(const std::exception_ptr& failure);

  const std::vector<Piece> pieces_;  // in order
  const std::size_t slots_;
  HostMemory memory_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t read_ = 0;   // pieces; guarded by mutex_, as is all below
  std::size_t taken_ = 0;  // pieces
  bool is_stopped_ = false;
  std::exception_ptr failure_;
};

}  // namespace terrace
