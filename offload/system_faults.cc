#include "offload/system_faults.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

#include "base/bytes.h"
#include "base/philox.h"

namespace terrace {

void hold_back(const SystemFault& fault) noexcept {
  if (fault.delay_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(fault.delay_us));
}

std::int64_t answer_with(const SystemFault& fault, std::int64_t answer,
                         std::span<std::byte> read) noexcept {
  if (fault.flipped_bit && answer > 0 && !read.empty()) {
    const std::uint64_t bit = *fault.flipped_bit % (static_cast<std::uint64_t>(answer) * 8);
    read[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  // The system's own failure is kept.
  if (answer < 0 || !fault.shown) return answer;
  if (*fault.shown <= 0) return *fault.shown;
  const std::int64_t shown = std::min(answer, *fault.shown);
  if (!read.empty()) {
    // Bytes that were not transferred must not be taken for data.
    std::ranges::fill(read.subspan(static_cast<std::size_t>(shown)), std::byte{0xA5});
  }
  return shown;
}

int refusal_of(SystemFaults* faults, SystemCall::Kind kind) {
  if (faults == nullptr) return 0;
  const SystemFault fault = faults->fate_of({.kind = kind});
  hold_back(fault);
  return fault.shown ? static_cast<int>(-*fault.shown) : 0;
}

SystemFault SeededFaults::fate_of(const SystemCall& call) noexcept {
  SystemFault fault = SystemFault::none(call);
  if (call.kind != SystemCall::Kind::kRead && call.kind != SystemCall::Kind::kWrite) return fault;
  std::uint32_t use = 0;
  {
    const std::lock_guard lock(mutex_);
    use = uses_[call.offset]++;
  }
  const std::uint32_t stream = call.kind == SystemCall::Kind::kRead ? 0 : 2;
  const PhiloxKey key{plan_.seed};
  const auto first = philox(key, {.index = call.offset, .stream = stream, .step = use});
  const auto second = philox(key, {.index = call.offset, .stream = stream + 1, .step = use});
  const std::uint32_t dice = second[0];
  if (uniform_from_bits(first[0]) < plan_.fail_rate) {
    // A failed write may still have changed a part of the block.
    const bool torn = call.kind == SystemCall::Kind::kWrite;
    fault.asked_bytes = torn ? call.size_bytes / alignment_ / 2 * alignment_ : 0;
    fault.shown = -plan_.error_number;
  } else if (uniform_from_bits(first[3]) < plan_.short_rate) {
    fault = shortened(call, dice);
  }
  if (uniform_from_bits(first[1]) < plan_.corrupt_rate) fault.flipped_bit = second[1];
  if (uniform_from_bits(first[2]) < plan_.delay_rate) fault.delay_us = 100 + dice % 2000;
  return fault;
}

// Keeps anything from no bytes to all but the last one, including sizes from which no aligned
// transfer can go on.
SystemFault SeededFaults::shortened(const SystemCall& call, std::uint32_t dice) const {
  const std::size_t kept = dice % 4 == 0 ? 0 : (dice >> 2) % call.size_bytes;
  if (kept == 0) return {.shown = -EINTR};
  return {.asked_bytes = round_up(kept, alignment_), .shown = static_cast<std::int64_t>(kept)};
}

}  // namespace terrace
