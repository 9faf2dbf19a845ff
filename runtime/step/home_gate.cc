#include "runtime/step/home_gate.h"

#include <algorithm>

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

std::vector<std::int32_t> order_of_changes(const Program& program) {
  std::vector<std::int32_t> order;
  for (const bool deferred : {false, true}) {
    for (const Op& op : program.ops) {
      if (op.is_deferred() != deferred) continue;
      const std::int32_t group = changed_group(program, op);
      if (group >= 0 && std::ranges::find(order, group) == order.end()) order.push_back(group);
    }
  }
  return order;
}

}  // namespace terrace
