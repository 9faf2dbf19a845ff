#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "runtime/session/parameter_session.h"
#include "runtime/session/parameter_values.h"
#include "runtime/session/session_error.h"

// The reads and writes of a session's state that its owner makes between steps.
namespace terrace {
namespace {

constexpr std::string_view kMaster = "master";

// Returns the first value of a chunk's field in its state. `slot` is the field's; none: the field
// is the master. A parameter that is its own master lies elsewhere.
float* values_of(const StateChunk& chunk, std::span<std::byte> state,
                 std::optional<std::size_t> slot) {
  const StateLayout layout = chunk.layout();
  if (slot) return reinterpret_cast<float*>(state.data() + layout.slots.at(*slot).begin);
  return reinterpret_cast<float*>(state.data() + layout.master.begin);
}

}  // namespace

void ParameterSession::visit_state(
    std::int32_t tensor, std::string_view field, const FieldRange& range, StateAccess access,
    FunctionRef<void(const StateChunk& chunk, std::span<float> values)> body) {
  const SessionTensor& of = table_.tensor(tensor);
  const std::span<const Slot> slots = table_.group_of(of).rule->slots;
  const auto found = std::ranges::find(slots, field, &Slot::name);
  if (of.is_frozen || (field != kMaster && found == slots.end())) {
    throw SessionError(SessionProblem::kArgument,
                       fmt::format("tensor {} has no state '{}'", of.name, field),
                       "see terrace_state_read() for the fields of each rule");
  }
  const std::int64_t end = range.begin + range.count;
  if (range.begin < 0 || range.count > of.elements || range.begin > of.elements - range.count) {
    throw SessionError(SessionProblem::kArgument,
                       fmt::format("elements {} to {} are asked for, but tensor {} has {}",
                                   range.begin, end, of.name, of.elements),
                       "name elements that exist");
  }
  std::optional<std::size_t> slot;
  if (field != kMaster) slot = static_cast<std::size_t>(found - slots.begin());
  std::vector<std::size_t> chunks;
  const auto [first, last] = home_->chunks_of(tensor);
  for (std::size_t i = first; i < last; ++i) {
    const StateChunk& chunk = home_->chunks()[i];
    if (chunk.begin < end && range.begin < chunk.begin + chunk.elements) chunks.push_back(i);
  }
  const bool reads_parameter = !slot && of.dtype == DType::kF32;
  const bool sets_master = !slot && access == StateAccess::kUpdate;
  if (reads_parameter || sets_master) memory_->order_after_caller(tensor);
  const SettledCopies settled = memory_->settled();
  const Phase before = phase_;
  // An error may leave a part written and the rest not.
  if (access == StateAccess::kUpdate) phase_ = Phase::kFailed;
  home_->for_each(chunks, access, [&](std::size_t i, std::span<std::byte> state) {
    const StateChunk& chunk = home_->chunks()[i];
    float* const values = reads_parameter ? reinterpret_cast<float*>(memory_->read(chunk).data())
                                          : values_of(chunk, state, slot);
    const std::int64_t from = std::max(range.begin, chunk.begin);
    const std::int64_t to = std::min(end, chunk.begin + chunk.elements);
    body(chunk, {values + (from - chunk.begin), static_cast<std::size_t>(to - from)});
    if (!sets_master) return;
    if (!reads_parameter) {
      const std::span<std::byte> parameters = memory_->room(chunk);
      round_parameter(of.dtype, parameters, values);
      marks_->take(i, parameters);
    }
    memory_->write_back(chunk);
  });
  memory_->wait();
  phase_ = before;
}

void ParameterSession::read_state(std::int32_t tensor, std::string_view field, std::int64_t begin,
                                  std::span<float> out) {
  expect_ready("state is read");
  auto next = out.begin();
  visit_state(tensor, field, {begin, std::ssize(out)}, StateAccess::kRead,
              [&](const StateChunk& /*chunk*/, std::span<float> values) {
                next = std::ranges::copy(values, next).out;
              });
}

void ParameterSession::write_state(std::int32_t tensor, std::string_view field, std::int64_t begin,
                                   std::span<const float> values) {
  expect_ready("state is written");
  auto next = values.begin();
  visit_state(tensor, field, {begin, std::ssize(values)}, StateAccess::kUpdate,
              [&](const StateChunk& /*chunk*/, std::span<float> part) {
                std::copy_n(next, part.size(), part.begin());
                next += std::ssize(part);
              });
}

std::int64_t ParameterSession::updates_of(std::int32_t tensor) const {
  expect_ready("a tensor's updates are asked for");
  table_.tensor(tensor);
  return progress_.updates[static_cast<std::size_t>(tensor)];
}

void ParameterSession::set_updates_of(std::int32_t tensor, std::int64_t updates) {
  expect_ready("a tensor's updates are set");
  table_.tensor(tensor);
  if (updates < 0 || updates > kMostSteps) {
    throw SessionError(SessionProblem::kArgument,
                       fmt::format("the number of updates is {}", updates),
                       fmt::format("it must be 0 to {}", kMostSteps));
  }
  progress_.updates[static_cast<std::size_t>(tensor)] = updates;
  progress_.step = std::max(progress_.step, updates);
}

std::span<float> ParameterSession::gradient_of(std::int32_t tensor) {
  expect_ready("a gradient is read");
  table_.tensor(tensor);
  if (additions_[static_cast<std::size_t>(tensor)] == 0) return {};
  return home_->gradient(tensor);
}

std::unique_ptr<MemoryLoan> ParameterSession::lend_gradient(std::int32_t tensor) {
  if (gradient_of(tensor).empty()) return nullptr;
  take_in_borrowed(tensor);
  const std::span<float> gradient = home_->gradient(tensor);
  return std::make_unique<MemoryLoan>(
      MemoryLoan::Elements{.data = reinterpret_cast<std::byte*>(gradient.data()),
                           .dtype = DType::kF32,
                           .shape = table_.tensor(tensor).shape,
                           .is_read_only = false},
      home_->memory(), loans_);
}

}  // namespace terrace
