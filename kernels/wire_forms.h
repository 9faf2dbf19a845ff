#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

// The form that numbers have on the way between data-parallel ranks.
namespace terrace {

enum class WireForm : std::uint8_t {
  kPlain,  // as the ranks keep them
  // Codes of 8 or 4 bits, with a scale for each block of 256 numbers (kernels/wire_ops.h).
  kInt8,
  kInt4,
};

// The names on the command line, in the order of the values.
inline constexpr std::array<std::string_view, 3> kWireForms = {"plain", "int8", "int4"};

constexpr std::string_view name_of(WireForm form) {
  return kWireForms.at(static_cast<std::size_t>(form));
}

// The state that a rank keeps is never coded. So gradients are coded only where ZeRO divides the
// optimizer state (stages 1 to 3), and parameters only where it divides them too (stage 3). Both
// are ideas of ZeRO++ (Wang et al. 2023, arXiv:2306.10209): qgZ and qwZ.
struct WireForms {
  WireForm gradients = WireForm::kPlain;
  WireForm parameters = WireForm::kPlain;
  // Error feedback: each rank keeps the errors of the codes of its gradients, and adds them to its
  // next gradients. They are a state class of their own (StateClass::kErrors).
  bool keeps_errors = false;

  bool are_plain() const { return gradients == WireForm::kPlain && parameters == WireForm::kPlain; }
  friend bool operator==(const WireForms&, const WireForms&) = default;
};

}  // namespace terrace
