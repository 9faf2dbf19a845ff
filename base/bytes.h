#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

// Sizes in bytes: units, rounding, and their text forms. Capacities are shown in GiB (1024^3),
// rates in GB/s (1e9 bytes per second), everywhere in the project.
namespace terrace {

inline constexpr std::size_t kKiB = 1024;
inline constexpr std::size_t kMiB = 1024 * kKiB;
inline constexpr std::size_t kGiB = 1024 * kMiB;
inline constexpr std::size_t kTiB = 1024 * kGiB;

// Smallest multiple of `alignment` that is at least `value`. `alignment` is positive, and need not
// be a power of two.
constexpr std::size_t round_up(std::size_t value, std::size_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

constexpr std::size_t divide_up(std::size_t value, std::size_t divisor) {
  return (value + divisor - 1) / divisor;
}

// Reads "4GiB", "512 MiB", "1.5GB", "4096" or "10_000". KiB MiB GiB TiB count in 1024, KB MB GB TB
// in 1000, a bare number is bytes. Throws ConfigError naming the text.
std::size_t parse_size(std::string_view text);

// "3.25 GiB", "12.0 MiB", "512 B": three significant digits, units of 1024.
std::string format_size(std::size_t size_bytes);

// "2.41 GB/s": units of 1e9.
std::string format_rate(double bytes_per_second);

}  // namespace terrace
