#include "runtime/train/state_staging.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace terrace {
namespace {

constexpr std::size_t kPieceBytes = kCheckpointPieceElements * sizeof(float);
constexpr std::size_t kPiecesAhead = 2;
// How long a hurry may go unnoticed.
constexpr auto kHurrySlice = std::chrono::milliseconds(1);

}  // namespace

std::vector<StateStaging::Piece> StateStaging::pieces_of(const CheckpointedModel& model) {
  std::vector<Piece> pieces;
  for (const UnitLayout* unit : model.units()) {
    for (const StateField field : state_fields(model.rule.slots.size())) {
      for (const auto& [begin, end] : unit->trained_spans()) {
        for (std::int64_t at = begin; at < end; at += kCheckpointPieceElements) {
          const std::int64_t count = std::min(kCheckpointPieceElements, end - at);
          pieces.push_back({unit, field, at, static_cast<std::size_t>(count)});
        }
      }
    }
    pieces.back().ends_unit = true;
  }
  return pieces;
}

StateStaging::StateStaging(const CheckpointedModel& model, std::size_t most_bytes)
    : pieces_(pieces_of(model)),
      slots_(std::clamp<std::size_t>(most_bytes / kPieceBytes, kPiecesAhead,
                                     std::max(pieces_.size(), kPiecesAhead))),
      memory_(slots_ * kPieceBytes, {.touch = false}),
      free_slots_(slots_) {
  std::iota(free_slots_.rbegin(), free_slots_.rend(), std::size_t{0});
}

std::span<float> StateStaging::memory_of(std::size_t slot, const Piece& piece) {
  const std::span<std::byte> memory = memory_.bytes().subspan(slot * kPieceBytes, kPieceBytes);
  return {reinterpret_cast<float*>(memory.data()), piece.count};
}

std::optional<std::size_t> StateStaging::wait_for_slot(InHurry in_hurry) {
  std::unique_lock lock(mutex_);
  const auto has_room = [&] {
    return is_stopped_ || read_slots_.size() < (in_hurry() ? slots_ : kPiecesAhead);
  };
  while (!changed_.wait_for(lock, kHurrySlice, has_room)) {
  }
  if (is_stopped_) return std::nullopt;
  const std::size_t slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

void StateStaging::read_all(FetchState fetch, UnitRead unit_read, InHurry in_hurry) {
  try {
    for (const Piece& piece : pieces_) {
      const std::optional<std::size_t> slot = wait_for_slot(in_hurry);
      if (!slot.has_value()) return;
      fetch(piece.field, *piece.unit, piece.begin, memory_of(*slot, piece));
      {
        const std::lock_guard lock(mutex_);
        read_slots_.push_back(*slot);
      }
      changed_.notify_all();
      if (piece.ends_unit) unit_read(static_cast<std::int32_t>(piece.unit->index));
    }
  } catch (...) {
    fail(std::current_exception());
    throw;
  }
}

void StateStaging::fail(const std::exception_ptr& failure) {
  {
    const std::lock_guard lock(mutex_);
    failure_ = failure;
  }
  changed_.notify_all();
}

void StateStaging::take(StateField field, const UnitLayout& unit, std::int64_t begin,
                        std::span<float> out) {
  const Piece& piece = pieces_.at(taken_);
  TERRACE_CHECK(piece.unit == &unit && piece.field == field);
  TERRACE_CHECK_EQ(piece.begin, begin);
  TERRACE_CHECK_EQ(piece.count, out.size());
  std::size_t slot = 0;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return failure_ != nullptr || !read_slots_.empty(); });
    if (failure_ != nullptr) std::rethrow_exception(failure_);
    slot = read_slots_.front();
  }
  std::ranges::copy(memory_of(slot, piece), out.begin());
  {
    const std::lock_guard lock(mutex_);
    read_slots_.pop_front();
    free_slots_.push_back(slot);
    ++taken_;
  }
  changed_.notify_all();
}

void StateStaging::stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
  }
  changed_.notify_all();
}

}  // namespace terrace
