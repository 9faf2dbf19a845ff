#include "runtime/step/home_gate.h"

#include <algorithm>
#include <unordered_set>

namespace terrace {

void HomeGate::close() {
  is_awaited_.store(false, std::memory_order_relaxed);
  for (std::atomic<bool>& closed : is_closed_) closed.store(true, std::memory_order_release);
}

void HomeGate::open(std::int32_t group) {
  std::atomic<bool>& closed = is_closed_.at(static_cast<std::size_t>(group));
  closed.store(false, std::memory_order_release);
  closed.notify_all();
}

bool HomeGate::try_pass(std::int32_t group) {
  if (is_open(group)) return true;
  is_awaited_.store(true, std::memory_order_relaxed);
  return false;
}

void HomeGate::pass(std::int32_t group) {
  if (!try_pass(group)) of(group).wait(true, std::memory_order_acquire);
}

void HomeGate::open_unit(std::int32_t unit) {
  for (std::size_t group = 0; group < owners_.size(); ++group) {
    if (owners_[group] == unit) open(static_cast<std::int32_t>(group));
  }
}

void HomeGate::open_all() {
  for (std::size_t group = 0; group < is_closed_.size(); ++group) {
    open(static_cast<std::int32_t>(group));
  }
}

std::int32_t changed_group(const Program& program, const Op& op) {
  if (op.kind == OpKind::kUpdate) return op.group;
  for (const Access& access : op.writes) {
    const Buffer& buffer = program.buffers.at(static_cast<std::size_t>(access.buffer));
    const bool is_home =
        buffer.key.kind == BufferKind::kParameters || buffer.key.kind == BufferKind::kState;
    if (is_home && buffer.life == Life::kPersistent) return buffer.key.owner;
  }
  return -1;
}

namespace {

// Returns the numbers that `number_of` gives the ops that change homes, each once, in the order in
// which the steps after a drain run these ops.
template <typename NumberOf>
std::vector<std::int32_t> in_order_of_change(const Program& program, NumberOf number_of) {
  std::vector<std::int32_t> order;
  std::unordered_set<std::int32_t> known;
  for (const bool deferred : {false, true}) {
    for (const Op& op : program.ops) {
      if (op.is_deferred() != deferred) continue;
      const std::int32_t group = changed_group(program, op);
      if (group >= 0 && known.insert(number_of(op, group)).second) {
        order.push_back(number_of(op, group));
      }
    }
  }
  return order;
}

}  // namespace

std::vector<std::int32_t> order_of_changes(const Program& program) {
  return in_order_of_change(program, [](const Op&, std::int32_t group) { return group; });
}

std::vector<std::int32_t> order_of_changed_units(const Program& program) {
  return in_order_of_change(program, [](const Op& op, std::int32_t) { return op.unit; });
}

}  // namespace terrace
