#include "offload/uring/ring.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <memory>
#include <thread>

#include "base/bytes.h"
#include "base/check.h"

namespace terrace {
namespace {

constexpr std::size_t kBufferBytesMax = kGiB;  // the kernel's limit for one registered buffer
constexpr unsigned kBuffersMax = 4096;         // table entries: at most 4 TiB of memory
// Queued transfers are started when they reach this size. A drive that has ended all its transfers
// then begins again at once, not only when the last of many transfers has been described. Entering
// the kernel costs less than that wait.
constexpr std::size_t kStartBytes = kMiB;

}  // namespace

Ring::~Ring() {
  if (!open_) return;
  if (has_buffer_table_) io_uring_unregister_buffers(&ring_);
  io_uring_queue_exit(&ring_);
}

int Ring::open(std::span<const int> files, unsigned entries, TaskRun task_run) {
  refused_call_ = "io_uring_setup";
  const int error = set_up(entries, task_run);
  if (error != 0) return error;
  open_ = true;
  refused_call_ = "io_uring_register of files";
  const int refused =
      -io_uring_register_files(&ring_, files.data(), static_cast<unsigned>(files.size()));
  if (refused != 0) return refused;
  refused_call_ = "io_uring_register of a probe";
  if (const int missing = check_operations(); missing != 0) return missing;
  refused_call_ = "io_uring_enter";
  return enter_once();
}

// Linux 5.1 to 5.5 have io_uring without the operations that transfers use.
int Ring::check_operations() {
  struct Free {
    void operator()(io_uring_probe* probe) const { io_uring_free_probe(probe); }
  };
  const std::unique_ptr<io_uring_probe, Free> probe(io_uring_get_probe_ring(&ring_));
  if (probe == nullptr) return EPERM;
  for (const int operation :
       {IORING_OP_READ, IORING_OP_WRITE, IORING_OP_READ_FIXED, IORING_OP_WRITE_FIXED}) {
    if (io_uring_opcode_supported(probe.get(), operation) == 0) return EOPNOTSUPP;
  }
  return 0;
}

// Sends an operation that does nothing through the ring.
int Ring::enter_once() {
  io_uring_prep_nop(io_uring_get_sqe(&ring_));
  constexpr int kTries = 100;
  int entered = -EINTR;
  for (int i = 0; i < kTries && (entered == -EINTR || entered == -EAGAIN); ++i) {
    entered = io_uring_submit_and_wait(&ring_, 1);
  }
  if (entered < 0) return -entered;
  std::uint64_t tag = 0;
  std::int64_t result = 0;
  return take(tag, result) ? static_cast<int>(-result) : EIO;
}

// Deferred task work came with Linux 6.1, a single issuer with 6.0; older kernels return EINVAL.
int Ring::set_up(unsigned entries, TaskRun task_run) {
  constexpr std::array kModes = {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
                                 IORING_SETUP_SINGLE_ISSUER, 0U};
  // A little time passes before the memory of a closed ring no longer counts against the limit on
  // locked memory.
  constexpr int kTries = 20;
  constexpr auto kPause = std::chrono::milliseconds(5);
  int result = 0;
  for (int i = 0; i < kTries; ++i) {
    for (auto mode = static_cast<std::size_t>(task_run); mode < kModes.size(); ++mode) {
      ring_ = {};
      result = io_uring_queue_init(entries, &ring_, kModes.at(mode));
      if (result != -EINVAL) break;
    }
    if (result != -ENOMEM) break;
    std::this_thread::sleep_for(kPause);
  }
  return -result;
}

int Ring::register_memory(std::span<std::byte> memory) {
  if (!has_buffer_table_) {
    const int result = io_uring_register_buffers_sparse(&ring_, kBuffersMax);
    if (result < 0) return -result;
    has_buffer_table_ = true;
  }
  while (!memory.empty()) {
    const std::span<std::byte> piece = memory.first(std::min(memory.size(), kBufferBytesMax));
    memory = memory.subspan(piece.size());
    if (buffer_of(piece) >= 0) continue;
    const int error = register_piece(piece);
    if (error != 0) return error;
  }
  return 0;
}

// Forgets the buffers one by one, as they were registered: on old kernels, removing the whole table
// waits for the read of the event.
int Ring::forget_memory() {
  while (!registered_.empty()) {
    const iovec none = {.iov_base = nullptr, .iov_len = 0};
    const __u64 tag = 0;
    const int result = io_uring_register_buffers_update_tag(
        &ring_, static_cast<unsigned>(registered_.size() - 1), &none, &tag, 1);
    if (result < 0) return -result;
    registered_.pop_back();
  }
  return 0;
}

int Ring::register_piece(std::span<std::byte> piece) {
  if (registered_.size() == kBuffersMax) return ENOSPC;
  const iovec range = {.iov_base = piece.data(), .iov_len = piece.size()};
  const __u64 tag = 0;
  const int result = io_uring_register_buffers_update_tag(
      &ring_, static_cast<unsigned>(registered_.size()), &range, &tag, 1);
  if (result < 0) return -result;
  const auto begin = reinterpret_cast<std::uintptr_t>(piece.data());
  registered_.push_back({.begin = begin, .end = begin + piece.size()});
  return 0;
}

int Ring::buffer_of(std::span<const std::byte> memory) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
  for (std::size_t place = 0; place < registered_.size(); ++place) {
    const Registered& range = registered_[place];
    if (range.begin <= begin && begin + memory.size() <= range.end) return static_cast<int>(place);
  }
  return -1;
}

void Ring::prepare(const Transfer& transfer, std::uint64_t tag) {
  io_uring_sqe* entry = io_uring_get_sqe(&ring_);
  TERRACE_CHECK(entry != nullptr);
  const auto [direction, file, memory, offset] = transfer;
  const auto size = static_cast<unsigned>(memory.size());
  const int place = static_cast<int>(file);
  const int buffer = buffer_of(memory);
  const bool reads = direction == IoDirection::kRead;
  if (buffer >= 0 && reads) {
    io_uring_prep_read_fixed(entry, place, memory.data(), size, offset, buffer);
  } else if (buffer >= 0) {
    io_uring_prep_write_fixed(entry, place, memory.data(), size, offset, buffer);
  } else if (reads) {
    io_uring_prep_read(entry, place, memory.data(), size, offset);
  } else {
    io_uring_prep_write(entry, place, memory.data(), size, offset);
  }
  io_uring_sqe_set_flags(entry, IOSQE_FIXED_FILE);
  io_uring_sqe_set_data64(entry, tag);
  queued_bytes_ += memory.size();
  if (queued_bytes_ >= kStartBytes) submit();
}

// Accepts a signal, or a shortage in the kernel that passes when something ends: transfers that
// were not started are started by the next call.
void Ring::check_entered(int result) {
  const bool passes =
      result == -EINTR || result == -EAGAIN || result == -EBUSY || result == -ENOMEM;
  if (!passes) TERRACE_CHECK_LE(0, result);
}

void Ring::submit() {
  queued_bytes_ = 0;
  check_entered(io_uring_submit(&ring_));
}

void Ring::submit_and_wait() {
  queued_bytes_ = 0;
  check_entered(io_uring_submit_and_wait(&ring_, 1));
}

bool Ring::take(std::uint64_t& tag, std::int64_t& result) {
  io_uring_cqe* end = nullptr;
  if (io_uring_peek_cqe(&ring_, &end) != 0) return false;
  tag = io_uring_cqe_get_data64(end);
  result = end->res;
  io_uring_cqe_seen(&ring_, end);
  return true;
}

}  // namespace terrace
