#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

// The form in which the optimizer state of a range of parameters is stored: slot by slot the
// numbers that the update rule keeps of all its elements, then what the parameters lack of their
// exact fp32 values, then, slot by slot, the exponents that blocks of 8-bit numbers share.
namespace terrace {

inline constexpr std::size_t kMostSlots = 2;

enum class MasterForm : std::uint8_t {
  kParameter,  // nothing: the parameters are fp32 themselves
  kSplit,      // 16 bits, which make a bf16 parameter the exact fp32 (base/half.h)
  kFp32,       // the fp32 value, whole
};

enum class SlotForm : std::uint8_t {
  kFp32,
  kBf16,
  kInt8,  // codes of 8 bits, of blocks that share an exponent (optim/moment_code.h)
};

struct StatePart {
  DType dtype = DType::kF32;
  std::size_t begin = 0;  // bytes from the start of the range's state
  std::size_t size_bytes = 0;

  std::size_t end() const { return begin + size_bytes; }
};

struct StateLayout {
  // Slots past the rule's number of slots have no bytes.
  std::array<StatePart, kMostSlots> slots;  // fp32, bf16 or u8
  StatePart master;                         // i16 remainders or fp32 values; none with kParameter
  std::array<StatePart, kMostSlots> exponents;  // u8, one for a block; bytes only with kInt8
  std::size_t size_bytes = 0;                   // a multiple of 4 KiB
};

struct StateFormat {
  MasterForm master = MasterForm::kFp32;
  SlotForm slot_form = SlotForm::kFp32;
  std::size_t slot_count = kMostSlots;  // of the update rule

  // Returns the layout of `elements` elements, a multiple of 4Ki. All parts except the exponents
  // begin and end at a multiple of 4 KiB.
  StateLayout layout(std::int64_t elements) const;
  std::size_t bytes(std::int64_t elements) const { return layout(elements).size_bytes; }
  // Returns whether an update needs the parameter's old value: it is its own master, or a part of
  // it.
  bool reads_parameter() const { return master != MasterForm::kFp32; }

  friend bool operator==(const StateFormat&, const StateFormat&) = default;
};

}  // namespace terrace
