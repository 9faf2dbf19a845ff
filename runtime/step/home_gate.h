#pragma once

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/step/program.h"

namespace terrace {

// Lets a reader read the homes of parameters and optimizer state while the next steps run: the
// first op that changes a group's homes waits until they have been read. One thread closes the gate
// between steps, another thread opens it group by group, and lanes wait at it.
class HomeGate {
 public:
  // `owners` has the unit of each group.
  explicit HomeGate(std::vector<std::int32_t> owners)
      : owners_(std::move(owners)), is_closed_(owners_.size()) {}

  // Closes the gate for all groups. Called only while no op runs.
  void close();
  void open(std::int32_t group);
  // Opens the gate for all groups of a unit.
  void open_unit(std::int32_t unit);
  void open_all();
  bool is_open(std::int32_t group) const { return !of(group).load(std::memory_order_acquire); }
  // Returns whether the group's homes may be changed. If not, is_awaited() is true from then on.
  bool try_pass(std::int32_t group);
  // Waits until the group's homes may be changed.
  void pass(std::int32_t group);
  // Returns whether an op has had to wait since close().
  bool is_awaited() const { return is_awaited_.load(std::memory_order_relaxed); }

 private:
  const std::atomic<bool>& of(std::int32_t group) const {
    return is_closed_.at(static_cast<std::size_t>(group));
  }

  const std::vector<std::int32_t> owners_;    // by group
  std::vector<std::atomic<bool>> is_closed_;  // by group
  std::atomic<bool> is_awaited_ = false;
};

// Returns the group whose homes of parameters or optimizer state the op changes, or -1 if there is
// none. An update counts even if another op changes the home after it, because the update may
// already take the new checksums of the home.
std::int32_t changed_group(const Program& program, const Op& op);

// Returns the groups in the order in which the steps after a drain first change their homes. Groups
// that no op changes are left out.
std::vector<std::int32_t> order_of_changes(const Program& program);
// Returns the same for the units that the groups belong to.
std::vector<std::int32_t> order_of_changed_units(const Program& program);

}  // namespace terrace
