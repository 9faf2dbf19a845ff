#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace terrace {

// One list of ops serves three parts. A step's updates run under the next step's forward, so the
// body begins with what finishes the step before. The prologue is the body without it (there is no
// step before), the drain is it alone. An op that a part leaves out still waits and completes in
// its place, doing nothing, so that one set of edges is right for all parts.
enum class Part : std::uint8_t { kPrologue, kBody, kDrain };
inline constexpr std::size_t kPartCount = 3;
std::string_view name_of(Part part);

// A set of parts: those that an op takes part in.
class Parts {
 public:
  constexpr Parts(std::initializer_list<Part> parts) {
    for (const Part part : parts) bits_ |= bit(part);
  }

  constexpr bool contains(Part part) const { return (bits_ & bit(part)) != 0; }
  friend constexpr bool operator==(Parts, Parts) = default;

 private:
  static constexpr unsigned bit(Part part) { return 1U << static_cast<unsigned>(part); }

  unsigned bits_ = 0;
};

inline constexpr Parts kOfThisStep = {Part::kPrologue, Part::kBody};
// Deferred: it finishes the step before.
inline constexpr Parts kOfStepBefore = {Part::kBody, Part::kDrain};
// A load that a deferred op and this step need, as a unit's update and its forward do.
inline constexpr Parts kOfBothSteps = {Part::kPrologue, Part::kBody, Part::kDrain};

}  // namespace terrace
