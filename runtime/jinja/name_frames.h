#pragma once

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace terrace::jinja {

// Finds the variables that Jinja2 takes for undefined from the beginning of a block on: those that
// the block sets, does not read before that by itself, and that no block around it names. A block
// within it that reads one before it is set does not see a value of that name that was passed to
// the template.
class NameFrames {
 public:
  NameFrames() = default;

  // Enters a block with variables of its own, which has these parameters.
  void enter(std::set<std::string> parameters = {}) {
    frames_.push_back({.named = std::move(parameters)});
  }
  // Leaves a block, and returns its variables that are undefined at first.
  std::set<std::string> leave() {
    std::set<std::string> undefined = std::move(frames_.back().undefined);
    frames_.pop_back();
    return undefined;
  }
  // Enter and leave a part of the block that may not run.
  void enter_branch() { ++frames_.back().branches; }
  void leave_branch() { --frames_.back().branches; }

  void read(const std::string& name) {
    if (!is_named(name)) frames_.back().named.insert(name);
  }
  void assign(const std::string& name) {
    Frame& frame = frames_.back();
    if (frame.branches == 0 && !is_named(name)) frame.undefined.insert(name);
    frame.named.insert(name);
  }

 private:
  struct Frame {
    std::set<std::string> named = {};
    std::set<std::string> undefined = {};
    int branches = 0;
  };

  bool is_named(const std::string& name) const {
    return std::ranges::any_of(frames_,
                               [&](const Frame& frame) { return frame.named.contains(name); });
  }

  std::vector<Frame> frames_;  // the last is the innermost
};

}  // namespace terrace::jinja
