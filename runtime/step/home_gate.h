#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "runtime/step/program.h"

namespace terrace {

// Lets somebody read the homes of parameters and optimizer state while the next steps run: the
// first op that changes a unit's homes waits until they have been read. One thread closes the gate
// between steps and another opens it, unit by unit; lanes wait.
class HomeGate {
 public:
  explicit HomeGate(std::int32_t units) : is_closed_(static_cast<std::size_t>(units)) {}

  // Only while no op runs.
  void close();
  void open(std::int32_t unit);
  void open_all();
  bool is_open(std::int32_t unit) const { return !of(unit).load(std::memory_order_acquire); }
  // Returns whether the unit's homes may be changed; else somebody is known to wait for that.
  bool try_pass(std::int32_t unit);
  // Returns when the unit's homes may be changed.
  void pass(std::int32_t unit);
  // Whether since close() somebody had to wait.
  bool is_awaited() const { return is_awaited_.load(std::memory_order_relaxed); }

 private:
  const std::atomic<bool>& of(std::int32_t unit) const {
    return is_closed_.at(static_cast<std::size_t>(unit));
  }

  std::vector<std::atomic<bool>> is_closed_;  // by unit
  std::atomic<bool> is_awaited_ = false;
};

// Returns the unit whose parameters or optimizer state at home an op changes, or whose checksums it
// takes before another op does; -1: none.
std::int32_t changed_unit(const Program& program, const Op& op);

// Returns the units in the order in which the steps after a drain first change their homes. Units
// that nothing changes are left out.
std::vector<std::int32_t> order_of_changes(const Program& program);

}  // namespace terrace
