#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>

// A layer between the engines and the system, for tests. Requests to the system may be made shorter
// or held back, and the system's answers may be changed. Both engines ask here before and after
// every transfer; real stores have no such layer.
namespace terrace {

struct SystemCall {
  enum class Kind : std::uint8_t { kOpen, kReserve, kRead, kWrite };
  Kind kind = Kind::kRead;
  std::uint64_t offset = 0;
  std::size_t size_bytes = 0;
};

struct SystemFault {
  // How many bytes the system is asked for: for transfers only, a multiple of the file's alignment.
  // 0: the system is not asked, and `shown` is taken for its answer.
  std::size_t asked_bytes = 0;
  // The answer that the caller gets instead of the system's: bytes, or a negative errno. In a read,
  // the bytes after that number are made unusable.
  std::optional<std::int64_t> shown = {};
  // The bit to flip, counted from the first bit of the bytes read.
  std::optional<std::uint64_t> flipped_bit = {};
  std::int64_t delay_us = 0;  // before the system is asked

  static SystemFault none(const SystemCall& call) { return {.asked_bytes = call.size_bytes}; }
};

class SystemFaults {
 public:
  virtual ~SystemFaults() = default;
  // Returns the fault for a call. Any thread.
  virtual SystemFault fate_of(const SystemCall& call) noexcept = 0;
};

// Sleeps as long as the fault says.
void hold_back(const SystemFault& fault) noexcept;
// Returns the answer that the caller of a transfer gets, given the system's answer. Changes `read`,
// the bytes that were read.
std::int64_t answer_with(const SystemFault& fault, std::int64_t answer,
                         std::span<std::byte> read) noexcept;

// Makes a blocking transfer that may meet faults: `transfer` asks the system for the bytes it is
// given.
template <typename Transfer>
std::int64_t transfer_with(SystemFaults* faults, const SystemCall& call, std::span<std::byte> read,
                           Transfer transfer) {
  if (faults == nullptr) return transfer(call.size_bytes);
  const SystemFault fault = faults->fate_of(call);
  hold_back(fault);
  const std::int64_t answer = fault.asked_bytes == 0 ? 0 : transfer(fault.asked_bytes);
  return answer_with(fault, answer, read);
}

// Returns the errno that a call without bytes is refused with, or 0 if it is not refused.
int refusal_of(SystemFaults* faults, SystemCall::Kind kind);

// The faults to inject, drawn from a seed. Rates are per transfer of (the rest of) a block.
struct FaultPlan {
  std::uint64_t seed = 0;
  double fail_rate = 0;     // the request fails with `error_number`
  int error_number = 5;     // EIO
  double corrupt_rate = 0;  // one bit of the bytes read is flipped
  double delay_rate = 0;    // the completion comes late, after others
  double short_rate = 0;    // only a part is transferred, or it is interrupted (EINTR)
};

// Faults for transfers only. A draw depends on the seed, the place in the file and how often that
// place was used, not on the order in which threads arrive.
class SeededFaults final : public SystemFaults {
 public:
  SeededFaults(const FaultPlan& plan, std::size_t alignment) : plan_(plan), alignment_(alignment) {}

  SystemFault fate_of(const SystemCall& call) noexcept override;

 private:
  SystemFault shortened(const SystemCall& call, std::uint32_t dice) const;

  const FaultPlan plan_;
  const std::size_t alignment_;
  std::mutex mutex_;
  std::map<std::uint64_t, std::uint32_t> uses_;  // of each offset; guarded by mutex_
};

}  // namespace terrace
