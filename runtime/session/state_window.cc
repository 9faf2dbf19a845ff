#include "runtime/session/state_window.h"

#include <algorithm>
#include <chrono>

#include "base/check.h"

namespace terrace {

void StateWindow::Slot::done(const IoOutcome& ended) noexcept {
  // Notifies under the mutex, because the window may be destroyed as soon as the slot is free.
  const std::scoped_lock lock(window->mutex_);
  outcome = ended;
  in_flight = false;
  window->changed_.notify_all();
}

StateWindow::StateWindow(BlockStore& store, std::span<std::byte> memory, std::size_t slot_bytes)
    : store_(store), slots_(memory.size() / slot_bytes) {
  TERRACE_CHECK_LE(std::size_t{2}, slots_.size());
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].window = this;
    slots_[i].memory = memory.subspan(i * slot_bytes, slot_bytes);
  }
}

StateWindow::~StateWindow() { store_.drain(); }

void StateWindow::start(std::vector<Extent> extents, StateAccess access) {
  store_.drain();  // the transfers of a pass that failed
  for (Slot& slot : slots_) slot.outcome = {};
  extents_ = std::move(extents);
  access_ = access;
  next_ = 0;
  next_read_ = 0;
}

std::span<std::byte> StateWindow::memory_of(std::size_t extent) {
  return slot_of(extent).memory.first(extents_[extent].size_bytes);
}

void StateWindow::submit(std::size_t extent, IoRequest::Direction direction) {
  Slot& slot = slot_of(extent);
  {
    const std::scoped_lock lock(mutex_);
    slot.in_flight = true;
  }
  const std::span<std::byte> memory = memory_of(extent);
  const bool reads = direction == IoRequest::Direction::kRead;
  (reads ? traffic_.read_bytes : traffic_.write_bytes) += memory.size();
  store_.submit({.direction = direction,
                 .extent = extents_[extent].id,
                 .memory = memory,
                 .completion = &slot});
}

void StateWindow::wait_for(Slot& slot) {
  const auto begin = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !slot.in_flight; });
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
  traffic_.wait_s += waited.count();
  slot.outcome.throw_if_failed();
}

// Reads ahead into half of the slots, while the other half are being written.
void StateWindow::read_ahead() {
  const std::size_t end = std::min(extents_.size(), next_ + slots_.size() / 2 + 1);
  for (next_read_ = std::max(next_read_, next_); next_read_ < end; ++next_read_) {
    wait_for(slot_of(next_read_));
    submit(next_read_, IoRequest::Direction::kRead);
  }
}

std::span<std::byte> StateWindow::fetch() {
  TERRACE_CHECK_LT(next_, extents_.size());
  if (access_ != StateAccess::kWrite) read_ahead();
  wait_for(slot_of(next_));
  return memory_of(next_);
}

void StateWindow::release() {
  if (access_ != StateAccess::kRead) submit(next_, IoRequest::Direction::kWrite);
  ++next_;
}

void StateWindow::finish() {
  for (Slot& slot : slots_) wait_for(slot);
}

}  // namespace terrace
