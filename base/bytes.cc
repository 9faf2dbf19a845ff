#include "base/bytes.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdlib>

#include "base/error.h"

namespace terrace {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

constexpr std::array<Unit, 10> kUnits = {{{"", 1},
                                          {"B", 1},
                                          {"KiB", 1024.0},
                                          {"MiB", 1024.0 * 1024},
                                          {"GiB", 1024.0 * 1024 * 1024},
                                          {"TiB", 1024.0 * 1024 * 1024 * 1024},
                                          {"KB", 1e3},
                                          {"MB", 1e6},
                                          {"GB", 1e9},
                                          {"TB", 1e12}}};

[[noreturn]] void refuse(std::string_view text) {
  throw ConfigError(fmt::format("'{}' is not a size", text),
                    "write a number and a unit, such as 4GiB, 512MiB, 20GB or 4096");
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Returns the length of the exponent that `text` begins with ("e8", "e+16"), or 0 if there is none.
std::size_t exponent_length(std::string_view text) {
  if (text.empty() || (text[0] != 'e' && text[0] != 'E')) return 0;
  std::size_t at = 1;
  if (at < text.size() && (text[at] == '+' || text[at] == '-')) ++at;
  const std::size_t first = at;
  while (at < text.size() && is_digit(text[at])) ++at;
  return at == first ? 0 : at;
}

}  // namespace

std::size_t parse_size(std::string_view text) {
  std::string digits;
  std::size_t at = 0;
  while (at < text.size() && (is_digit(text[at]) || text[at] == '.' || text[at] == '_')) {
    if (text[at] != '_') digits += text[at];
    ++at;
  }
  const std::size_t exponent = exponent_length(text.substr(at));
  digits += text.substr(at, exponent);
  at += exponent;
  while (at < text.size() && text[at] == ' ') ++at;
  const std::string_view unit = text.substr(at);
  char* end = nullptr;
  const double number = std::strtod(digits.c_str(), &end);
  if (digits.empty() || *end != '\0') refuse(text);
  for (const Unit& known : kUnits) {
    if (unit != known.name) continue;
    const double size = std::floor(number * known.factor);
    if (!(size < 9.2e18)) refuse(text);
    return static_cast<std::size_t>(size);
  }
  refuse(text);
}

std::string format_size(std::size_t size_bytes) {
  constexpr std::array<const char*, 5> kNames = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(size_bytes);
  std::size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < kNames.size()) {
    value /= 1024.0;
    ++unit;
  }
  if (unit == 0) return fmt::format("{} B", size_bytes);
  const int decimals = value < 10 ? 2 : (value < 100 ? 1 : 0);
  return fmt::format("{:.{}f} {}", value, decimals, kNames.at(unit));
}

std::string format_rate(double bytes_per_second) {
  return fmt::format("{:.2f} GB/s", bytes_per_second / 1e9);
}

}  // namespace terrace
