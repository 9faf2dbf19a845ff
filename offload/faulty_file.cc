#include "offload/faulty_file.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <thread>

#include "base/philox.h"

namespace terrace {

FaultyFile::Fate FaultyFile::draw(std::uint64_t offset, std::uint32_t direction) {
  std::uint32_t use = 0;
  {
    const std::lock_guard lock(mutex_);
    use = uses_[offset]++;
  }
  const PhiloxKey key{plan_.seed};
  const auto first = philox(key, {.index = offset, .stream = 2 * direction, .step = use});
  const auto second = philox(key, {.index = offset, .stream = 2 * direction + 1, .step = use});
  return {.fails = uniform_from_bits(first[0]) < plan_.fail_rate,
          .corrupts = uniform_from_bits(first[1]) < plan_.corrupt_rate,
          .delays = uniform_from_bits(first[2]) < plan_.delay_rate,
          .shortens = uniform_from_bits(first[3]) < plan_.short_rate,
          .dice = second[0]};
}

// From nothing to all but the last byte: also sizes that no aligned transfer can go on from.
std::size_t FaultyFile::shortened(std::size_t size, std::uint32_t dice) const {
  return dice % 4 == 0 ? 0 : (dice >> 2) % size;
}

void FaultyFile::wait_a_little(std::uint32_t dice) {
  std::this_thread::sleep_for(std::chrono::microseconds(100 + dice % 2000));
}

std::int64_t FaultyFile::read_at(std::span<std::byte> memory, std::uint64_t offset) noexcept {
  const Fate fate = draw(offset, 0);
  if (fate.delays) wait_a_little(fate.dice);
  if (fate.fails) return -plan_.error_number;
  std::int64_t result = upstream_.read_at(memory, offset);
  if (result <= 0) return result;
  if (fate.corrupts) {
    memory[fate.dice % static_cast<std::uint64_t>(result)] ^= std::byte{1} << (fate.dice >> 29);
  }
  if (!fate.shortens) return result;
  const std::size_t kept = shortened(static_cast<std::size_t>(result), fate.dice);
  // What was not carried must not be taken for data.
  for (std::byte& byte : memory.subspan(kept)) byte = std::byte{0xA5};
  return kept == 0 ? -EINTR : static_cast<std::int64_t>(kept);
}

std::int64_t FaultyFile::write_at(std::span<const std::byte> memory,
                                  std::uint64_t offset) noexcept {
  const Fate fate = draw(offset, 1);
  if (fate.delays) wait_a_little(fate.dice);
  if (fate.fails) {
    // A failed write may still have changed a part of the block.
    const std::size_t torn = memory.size() / alignment() / 2 * alignment();
    if (torn > 0) upstream_.write_at(memory.first(torn), offset);
    return -plan_.error_number;
  }
  if (!fate.shortens) return upstream_.write_at(memory, offset);
  const std::size_t kept = shortened(memory.size(), fate.dice);
  const std::size_t whole = kept / alignment() * alignment();
  if (whole == 0) return -EINTR;
  const std::int64_t result = upstream_.write_at(memory.first(whole), offset);
  return result < 0 ? result : static_cast<std::int64_t>(kept);
}

}  // namespace terrace
