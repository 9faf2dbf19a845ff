#include "runtime/train/state_staging.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace terrace {
namespace {

constexpr std::size_t kPieceBytes = kCheckpointPieceElements * sizeof(float);

}  // namespace

std::vector<StateStaging::Piece> StateStaging::pieces_of(const CheckpointedModel& model) {
  std::vector<Piece> pieces;
  for (const UnitLayout* unit : model.units()) {
    for (const StateField field : state_fields(model.rule.slots.size())) {
      const std::int64_t end = unit->trained_end();
      for (std::int64_t at = 0; at < end; at += kCheckpointPieceElements) {
        const std::int64_t count = std::min(kCheckpointPieceElements, end - at);
        pieces.push_back({unit, field, at, static_cast<std::size_t>(count)});
      }
    }
    pieces.back().ends_unit = true;
  }
  return pieces;
}

std::size_t StateStaging::whole_bytes(const CheckpointedModel& model) {
  return pieces_of(model).size() * kPieceBytes;
}

StateStaging::StateStaging(const CheckpointedModel& model, std::size_t most_bytes)
    : pieces_(pieces_of(model)),
      slots_(std::clamp<std::size_t>(most_bytes / kPieceBytes, 2,
                                     std::max<std::size_t>(pieces_.size(), 2))),
      memory_(slots_ * kPieceBytes, {.touch = false}) {}

std::span<float> StateStaging::memory_of(std::size_t piece) {
  const std::span<std::byte> slot =
      memory_.bytes().subspan(piece % slots_ * kPieceBytes, kPieceBytes);
  return {reinterpret_cast<float*>(slot.data()), pieces_.at(piece).count};
}

bool StateStaging::wait_for_room(std::size_t piece) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return is_stopped_ || piece < taken_ + slots_; });
  return !is_stopped_;
}

void StateStaging::read_all(FetchState fetch, UnitRead unit_read) {
  try {
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      const Piece& piece = pieces_[i];
      if (!wait_for_room(i)) return;
      fetch(piece.field, *piece.unit, piece.begin, memory_of(i));
      {
        const std::lock_guard lock(mutex_);
        read_ = i + 1;
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
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return failure_ != nullptr || taken_ < read_; });
    if (failure_ != nullptr) std::rethrow_exception(failure_);
  }
  std::ranges::copy(memory_of(taken_), out.begin());
  {
    const std::lock_guard lock(mutex_);
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
