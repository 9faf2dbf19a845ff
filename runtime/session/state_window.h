#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "offload/block_store.h"

namespace terrace {

// The access to state that a pass over it makes.
enum class StateAccess : std::uint8_t { kRead, kWrite, kUpdate };

// Streams extents of a store through a few slots of memory: reads run ahead of the caller's work on
// an extent, writes run behind it. One thread uses it, with these calls:
//
//   start(extents, access);
//   for each extent:  fetch();  release();
//   finish();
class StateWindow {
 public:
  struct Extent {
    ExtentId id;
    std::size_t size_bytes = 0;  // a multiple of the store's alignment, at most a slot's size
  };
  struct Traffic {
    std::uint64_t read_bytes = 0;
    std::uint64_t write_bytes = 0;
    double wait_s = 0;  // the time that the caller has waited
  };

  // `memory` is divided into slots of `slot_bytes` each, as many as fit, two at least. Borrows
  // both.
  StateWindow(BlockStore& store, std::span<std::byte> memory, std::size_t slot_bytes);
  // Waits for what is in flight.
  ~StateWindow();
  StateWindow(const StateWindow&) = delete;
  StateWindow& operator=(const StateWindow&) = delete;

  void start(std::vector<Extent> extents, StateAccess access);
  // Returns the next extent's slot, with its content unless the access is kWrite. Throws IoError
  // and CorruptData of this and of earlier transfers.
  std::span<std::byte> fetch();
  // Ends the caller's work on the extent that it fetched last.
  void release();
  // Waits for the last writes. Throws as fetch() does.
  void finish();

  const Traffic& traffic() const { return traffic_; }

 private:
  struct Slot final : IoCompletion {
    void done(const IoOutcome& ended) noexcept override;

    StateWindow* window = nullptr;
    std::span<std::byte> memory;
    bool in_flight = false;  // guarded by the window's mutex, as is
    IoOutcome outcome;
  };

  std::span<std::byte> memory_of(std::size_t extent);
  Slot& slot_of(std::size_t extent) { return slots_[extent % slots_.size()]; }
  void submit(std::size_t extent, IoRequest::Direction direction);
  void read_ahead();
  void wait_for(Slot& slot);

  BlockStore& store_;
  std::vector<Slot> slots_;
  std::vector<Extent> extents_;
  StateAccess access_ = StateAccess::kRead;
  std::size_t next_ = 0;       // the next extent to fetch
  std::size_t next_read_ = 0;  // the next extent to read
  Traffic traffic_;
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace terrace
