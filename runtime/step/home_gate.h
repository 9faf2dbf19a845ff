#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "runtime/step/program.h"

namespace terrace {

// Lets a reader read the homes of parameters and optimizer state while the next steps run: the
// first op that changes a unit's homes waits until they have been read. One thread closes the gate
// between steps, another thread opens it unit by unit, and lanes wait at it.
class HomeGate {
 public:
  explicit HomeGate(std::int32_t units) : is_closed_(static_cast<std::size_t>(units)) {}

  // Closes the gate for all units. Called only while no op runs.
  void close();
  void open(std::int32_t unit);
  void open_all();
  bool is_open(std::int32_t unit) const { return !of(unit).load(std::memory_order_acquire); }
  // Returns whether the unit's homes may be changed. If not, is_awaited() is true from then on.
  bool try_pass(std::int32_t unit);
  // Waits until the unit's homes may be changed.
  void pass(std::int32_t unit);
  // Returns whether an op has had to wait since close().
  bool is_awaited() const { return is_awaited_.load(std::memory_order_relaxed); }

 private:
  const std::atomic<bool>& of(std::int32_t unit) const {
    return is_closed_.at(static_cast<std::size_t>(unit));
  }

  std::vector<std::atomic<bool>> is_closed_;  // by unit
  std::atomic<bool> is_awaited_ = false;
};

// Returns the unit whose homes of parameters or optimizer state the op changes, or -1 if there is
// none. An update counts even if another op changes the home after it, because the update may
// already take the new checksums of the home.
std::int32_t changed_unit(const Program& program, const Op& op);

// Returns the units in the order in which the steps after a drain first change their homes. Units
// that no op changes are left out.
std::vector<std::int32_t> order_of_changes(const Program& program);

}  // namespace terrace
