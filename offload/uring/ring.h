#pragma once

#include <liburing.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "offload/io_engine.h"
#include "offload/uring/ring_mode.h"

namespace terrace {

// A ring with its registered files and buffers. Everything, including making and destroying,
// happens on one thread, so the kernel needs no locks (IORING_SETUP_SINGLE_ISSUER).
class Ring {
 public:
  Ring() = default;
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // Makes the ring as asked, or in the next weaker mode that the kernel accepts, and tries every
  // system call that a transfer needs: a sandbox may allow one and refuse another. Transfers name
  // the files by their index here. Returns 0 or an errno; then refused_call() names the call that
  // was refused.
  int open(std::span<const int> files, unsigned entries, TaskRun task_run);
  const char* refused_call() const { return refused_call_; }

  // Registers memory, in pieces that the kernel accepts. Returns 0 or an errno; memory registered
  // earlier stays registered.
  int register_memory(std::span<std::byte> memory);
  // Ends all registrations. No transfer may be in flight. Returns 0 or an errno.
  int forget_memory();

  struct Transfer {
    IoDirection direction = IoDirection::kRead;
    std::size_t file = 0;  // its index in `files` of open()
    std::span<std::byte> memory;
    std::uint64_t offset = 0;
  };

  // Queues a transfer; it starts with the next submit() or submit_and_wait(), or before.
  void prepare(const Transfer& transfer, std::uint64_t tag);
  // Starts the queued transfers.
  void submit();
  // Starts the queued transfers and waits until something has ended.
  void submit_and_wait();
  // Takes one ended transfer, if there is one.
  bool take(std::uint64_t& tag, std::int64_t& result);

 private:
  struct Registered {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
  };

  int set_up(unsigned entries, TaskRun task_run);
  int check_operations();
  int enter_once();
  static void check_entered(int result);
  int register_piece(std::span<std::byte> piece);
  // Returns the index of the registered buffer that holds all of `memory`, or -1.
  int buffer_of(std::span<const std::byte> memory) const;

  io_uring ring_ = {};
  bool open_ = false;
  const char* refused_call_ = "";
  bool has_buffer_table_ = false;
  std::size_t queued_bytes_ = 0;
  std::vector<Registered> registered_;  // by index in the kernel's table
};

}  // namespace terrace
