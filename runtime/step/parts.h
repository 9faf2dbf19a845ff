#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace terrace {

// A part of the program that a run executes. One list of ops serves all three parts. A step's
// updates run under the next step's forward, so the body begins with the ops that finish the step
// before. The prologue is the body without these ops, because there is no step before. The drain is
// these ops alone. An op that a part leaves out still waits and completes in its place without
// doing anything, so one set of edges is right for all parts.
enum class Part : std::uint8_t { kPrologue, kBody, kDrain };
inline constexpr std::size_t kPartCount = 3;
std::string_view name_of(Part part);

// The set of parts that an op takes part in.
class Parts {
 public:
  constexpr Parts(std::initializer_list<Part> parts) {
    for (const Part part : parts) bits_ = static_cast<std::uint8_t>(bits_ | bit(part));
  }

  constexpr bool contains(Part part) const { return (bits_ & bit(part)) != 0; }
  friend constexpr bool operator==(Parts, Parts) = default;

 private:
  static constexpr unsigned bit(Part part) { return 1U << static_cast<unsigned>(part); }

  std::uint8_t bits_ = 0;  // small: a step has a million ops
};

inline constexpr Parts kOfThisStep = {Part::kPrologue, Part::kBody};
// The parts of a deferred op, which finishes the step before.
inline constexpr Parts kOfStepBefore = {Part::kBody, Part::kDrain};
// The parts of a load that both a deferred op and this step need, for example a unit's update and
// its forward.
inline constexpr Parts kOfBothSteps = {Part::kPrologue, Part::kBody, Part::kDrain};

}  // namespace terrace
