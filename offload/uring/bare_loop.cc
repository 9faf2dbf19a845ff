#include "offload/uring/bare_loop.h"

#include <array>
#include <cerrno>

#include "base/check.h"
#include "offload/uring/ring.h"
#include "offload/uring/uring_engine.h"

namespace terrace {

BareLoop::BareLoop(const DirectFile& file, const FileRange& range, std::span<std::byte> memory,
                   const Options& options)
    : file_(file),
      options_(options),
      range_(range),
      busy_(static_cast<std::size_t>(options.depth)),
      ring_(std::make_unique<Ring>()) {
  for (std::size_t at = 0; at + options.block_bytes <= memory.size(); at += options.block_bytes) {
    rested_.push_back(memory.subspan(at, options.block_bytes));
  }
  TERRACE_CHECK_LE(static_cast<std::size_t>(options.depth) * options.block_bytes, memory.size());
  TERRACE_CHECK_LE(2 * options.block_bytes, range.bytes);
  const std::array files = {file.descriptor()};
  int error = ring_->open(files, static_cast<unsigned>(options.depth), options.mode.task_run);
  const char* call = ring_->refused_call();
  if (error == 0 && options.mode.registered_buffers) {
    error = ring_->register_memory(memory);
    call = "io_uring_register of buffers";
  }
  if (error == 0) return;
  throw UringRefused({.operation = call, .path = file.path(), .error_number = error});
}

BareLoop::~BareLoop() = default;

std::uint64_t BareLoop::run(IoMix mix, double seconds, const Clock& clock) {
  const std::uint64_t blocks = range_.bytes / options_.block_bytes;
  const std::uint64_t half = mix == IoMix::kMixed ? blocks / 2 : blocks;
  reads_ = {.begin = range_.begin, .blocks = half};
  writes_ = {.begin = range_.begin + (blocks - half) * options_.block_bytes, .blocks = half};
  carried_ = 0;
  const std::int64_t until_ns = clock.now_ns() + static_cast<std::int64_t>(seconds * 1e9);
  for (int slot = 0; slot < options_.depth; ++slot) start(mix, static_cast<std::size_t>(slot));
  while (in_flight_ > 0) {
    ring_->submit_and_wait();
    take_ended(mix, clock.now_ns() < until_ns);
  }
  if (failed_) refuse();
  return carried_;
}

void BareLoop::start(IoMix mix, std::size_t slot) {
  const bool writes = mix == IoMix::kWrite || (mix == IoMix::kMixed && write_next_);
  write_next_ = !write_next_;
  Cursor& cursor = writes ? writes_ : reads_;
  const std::uint64_t offset = cursor.begin + cursor.next * options_.block_bytes;
  cursor.next = (cursor.next + 1) % cursor.blocks;
  busy_[slot] = rested_.front();
  rested_.pop_front();
  ring_->prepare({.direction = writes ? IoDirection::kWrite : IoDirection::kRead,
                  .file = 0,
                  .memory = busy_[slot],
                  .offset = offset},
                 slot);
  ++in_flight_;
}

void BareLoop::take_ended(IoMix mix, bool restart) {
  std::uint64_t slot = 0;
  std::int64_t result = 0;
  while (ring_->take(slot, result)) {
    --in_flight_;
    rested_.push_back(busy_[slot]);
    if (result == static_cast<std::int64_t>(options_.block_bytes)) {
      carried_ += options_.block_bytes;
    } else {
      failed_ = true;
      failure_ = result;
    }
    if (restart && !failed_) start(mix, slot);
  }
}

void BareLoop::refuse() const {
  throw IoError({.operation = "transfer of a block",
                 .path = file_.path(),
                 .size = options_.block_bytes,
                 .error_number = failure_ < 0 ? static_cast<int>(-failure_) : 0});
}

}  // namespace terrace
